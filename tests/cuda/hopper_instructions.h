/* Kernels that run the instructions of sm_90a alone, for test_hopper_instructions.c. */
#ifndef FM_TESTS_HOPPER_INSTRUCTIONS_H
#define FM_TESTS_HOPPER_INSTRUCTIONS_H

#include "cuda/sm90/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[64][64]: the box of the query map at (dim0, row0) of batch item and head 1. */
int hopper_copy_box(const fm_sm90_maps *maps, int dim0, int row0, uint16_t *out);
/* A cluster of two blocks: out[block][3][64][64]: of dims 0 .. 63, batch item and head 1 of query the box at row 0, which block 0 brings to
 * both; the block's own, at row 64 (block + 1); the other's, from its shared memory. words[block]: 100 + the other. */
int hopper_share_boxes(const fm_sm90_maps *maps, uint16_t *out, uint32_t *words);
/* out[64][columns] = 64 rows of query times `columns` rows of key, 64 dims; columns 64, 96, 128, 192 or 256. */
int hopper_multiply_shared(const fm_sm90_maps *maps, int columns, float *out);
/* out[64][columns] = start + weights[64][64] times 64 rows of value, `columns` dims. */
int hopper_multiply_registers(const fm_sm90_maps *maps, int columns, const uint16_t *weights, float start, float *out);
/* out[64][columns] = 64 rows of query, 64 dims, times as many rows of value, dims dim0 .. dim0 + columns: 0 and 64, or 0 or 32 and 32. */
int hopper_multiply_transposed(const fm_sm90_maps *maps, int columns, int dim0, float *out);
/* out[16][16]: in[16][16] transposed; sum[256] += 4 words[256]. */
int hopper_store_and_add(const uint16_t *in, uint16_t *out, const float *words, float *sum);
/* `blocks` blocks take turns from the last to the first: sum[256] = 2 sum + block, by the copy engine. counter: 0. */
int hopper_take_turns(int blocks, uint32_t *counter, float *sum);
/* out[256]: 1 of each thread that took registers from 128 others. */
int hopper_move_registers(int *out);

#ifdef __cplusplus
}
#endif
#endif
