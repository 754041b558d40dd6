#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR = 32, LINE = 79 }; /* columns of all that fm_progress_say prints */

/* The bar goes back to the start of its line and clears it, which a dumb terminal cannot and one that wraps the line spoils. */
static bool can_show(void) {
    const char *terminal = getenv("TERM");
    struct winsize size = {0};
    if (isatty(STDERR_FILENO) != 1 || terminal == NULL || strcmp(terminal, "dumb") == 0) {
        return false;
    }
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_col > LINE;
}

fm_progress fm_progress_start(int64_t steps) { return (fm_progress){.shown = can_show(), .steps = steps > 0 ? steps : 1}; }

void fm_progress_say(const fm_progress *progress, const char *what) {
    if (!progress->shown) {
        return;
    }
    const int filled = (int)(BAR * progress->done / progress->steps);
    char bar[BAR + 1];
    for (int i = 0; i < BAR; i++) {
        bar[i] = i < filled ? '#' : '.';
    }
    bar[BAR] = '\0';
    fprintf(stderr, "\r[%s] %3d%%  %-36.36s", bar, (int)(100 * progress->done / progress->steps), what);
    fflush(stderr);
}

void fm_progress_advance(fm_progress *progress, int64_t steps) { progress->done += steps; }

void fm_progress_clear(const fm_progress *progress) {
    if (progress->shown) {
        fprintf(stderr, "\r\x1b[K");
        fflush(stderr);
    }
}

void fm_progress_end(fm_progress *progress) {
    fm_progress_clear(progress);
    progress->shown = false;
}
