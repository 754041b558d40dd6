/* The commands. Each returns its exit status, an fm_exit; on FM_EXIT_BAD it has stored a message and written nothing. */
#ifndef FM_CLI_COMMANDS_H
#define FM_CLI_COMMANDS_H

#include "options.h"

fm_exit fm_command_show(const fm_options *options);
fm_exit fm_command_check(const fm_options *options);
fm_exit fm_command_run(const fm_options *options);
fm_exit fm_command_bench(const fm_options *options);
fm_exit fm_command_pack(const fm_options *options);
fm_exit fm_command_demo(const fm_options *options);

#endif
