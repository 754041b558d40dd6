/* A progress bar on stderr, drawn only when that is a terminal. */
#ifndef FM_CLI_PROGRESS_H
#define FM_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fm_progress {
    bool shown;
    int64_t steps, done; /* done: of steps */
} fm_progress;

fm_progress fm_progress_start(int64_t steps);

/* Says what is being done now. */
void fm_progress_say(const fm_progress *progress, const char *what);

/* `steps` more steps are done. */
void fm_progress_advance(fm_progress *progress, int64_t steps);

/* Takes the bar off the screen, until it says something again. */
void fm_progress_clear(const fm_progress *progress);

/* The same for good. */
void fm_progress_end(fm_progress *progress);

#endif
