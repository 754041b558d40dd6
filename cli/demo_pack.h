/* The demo's three sets of real lengths, packed. */
#ifndef FM_CLI_DEMO_PACK_H
#define FM_CLI_DEMO_PACK_H

#include "packed_set.h"

enum { FM_DEMO_SETS = 3 };

/* The folder of the length files: the given one, or if that is NULL the source tree that built this program, or what was
 * installed with it. */
bool fm_demo_find_data(const char *given, char *out, size_t room);

/* "chat, SFT": what a set is. */
const char *fm_demo_set_name(int index);

/* Set 0 .. FM_DEMO_SETS - 1 from directory `data`, packed best-fit into sequences of `capacity` tokens: chats and code as
 * documents, long ones cut, pairs as questions with two answers. */
bool fm_demo_set_load(int index, const char *data, int64_t capacity, fm_packed_set *out);

#endif
