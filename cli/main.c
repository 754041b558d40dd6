/* flashmask: the command line over the library. */
#include "commands.h"

#include <errno.h>
#include <string.h>

typedef struct command {
    const char *name, *summary;
    fm_command_bit bit;
    fm_exit (*run)(const fm_options *options);
} command;

static const command commands[] = {
    {"show", "a mask's statistics, tile classes and picture", FM_SHOW, fm_command_show},
    {"check", "attention with a mask, forward and backward, against the f64 reference", FM_CHECK, fm_command_check},
    {"run", "attention on arrays from files, with any mask; results to files", FM_RUN, fm_command_run},
    {"bench", "times masks of the published benchmark and real packs, and checks each", FM_BENCH, fm_command_bench},
    {"pack", "document lengths into sequences, and the arrays beside their tokens", FM_PACK, fm_command_pack},
    {"demo", "packs real document lengths, runs masked attention on them and checks it", FM_DEMO, fm_command_demo},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(void) {
    printf("usage: flashmask COMMAND [OPTIONS]\n\nAttention with column-wise masks.\n\n");
    for (int i = 0; i < COMMANDS; i++) {
        printf("  %-6s %s\n", commands[i].name, commands[i].summary);
    }
    printf("  %-6s %s\n\n", "masks", "the masks that --mask can name, with their keys");
    printf("'flashmask COMMAND --help' lists a command's options. For example:\n\n"
           "  flashmask show --mask causal_document:lengths=1024+512+1536+1024\n"
           "  flashmask check --mask sliding_window:window=512 --seq 2048 --dtype bf16\n\n"
           "Exit status: 0 done or agrees, 1 differs, 2 bad usage or input.\n");
}

static void print_masks_help(void) {
    printf("usage: flashmask masks\n\nThe masks that --mask can name, with their keys: [] may be left out, (a|b) is one of the "
           "two.\n");
}

static void print_version(void) {
    const int version = fm_version();
    printf("flashmask %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
}

static fm_exit run_command(const command *c, int argc, char **argv) {
    fm_options options = {0};
    if (!fm_options_parse(argc, argv, c->bit, &options)) {
        return FM_EXIT_BAD;
    }
    if (!options.help) {
        return c->run(&options);
    }
    printf("usage: flashmask %s %s[OPTIONS]\n\n%c%s.\n\n", c->name, c->bit == FM_PACK ? "FILE " : "", c->summary[0] - 'a' + 'A',
           c->summary + 1);
    fm_options_print(stdout, c->bit);
    return FM_EXIT_OK;
}

/* Words that are no command: what stands before any command, and the list of masks. */
static fm_exit run_word(int argc, char **argv) {
    const char *word = argv[1];
    void (*print)(void) = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0 ? print_help
                          : strcmp(word, "--version") == 0                                                    ? print_version
                                                                                                              : NULL;
    const bool masks = strcmp(word, "masks") == 0;
    if (print == NULL && !masks) {
        fm_cli_fail("unknown command '%.80s'; see 'flashmask --help'", word);
        return FM_EXIT_BAD;
    }
    if (masks && argc == 3 && strcmp(argv[2], "--help") == 0) {
        print = print_masks_help;
    } else if (argc > 2) {
        fm_cli_fail("%s: takes no arguments", word);
        return FM_EXIT_BAD;
    }
    if (print == NULL) {
        fm_mask_spec_print_table(stdout);
    } else {
        print();
    }
    return FM_EXIT_OK;
}

static fm_exit run(int argc, char **argv) {
    if (argc < 2) {
        fm_cli_fail("no command given; see 'flashmask --help'");
        return FM_EXIT_BAD;
    }
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return run_command(&commands[i], argc - 1, argv + 1);
        }
    }
    return run_word(argc, argv);
}

int main(int argc, char **argv) {
    fm_exit status = run(argc, argv);
    if (status != FM_EXIT_BAD && (fflush(stdout) != 0 || ferror(stdout))) {
        fm_cli_fail("standard output: %s", strerror(errno));
        status = FM_EXIT_BAD;
    }
    if (status == FM_EXIT_BAD) {
        fprintf(stderr, "flashmask: %s\n", fm_cli_message());
    }
    return (int)status;
}
