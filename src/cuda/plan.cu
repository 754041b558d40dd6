/* Fills a device plan: four launches in stream order, no memory of their own, no waiting.
 *
 * Tiles: 64 x 64, two bits each. The class kernel works on regions of 32 x 32 tiles: a word of each of 32 columns and of 32 rows.
 * Roles, per launch:
 *   bounds   a thread makes one key of one plane: plan_bounds.cuh
 *   classes  a block takes 32 columns of tiles, a warp a column: a lane holds two of its 64 keys, and all lanes what the keys have
 *            in common. The warp makes up to 8 words of its column; then 8 warps transpose one word of the 32 columns each
 *   counts   a warp makes one group: ORs the words of its two lines
 *   order    a warp places one group: its place is the number of groups that go before it
 * Barriers: one __syncthreads in classes, between the words of columns and those of rows.
 * Shared memory and registers: 2.1 KiB (classes); at most 64 registers, since its blocks have 1024 threads.
 * Order in time:
 *     bounds  [planes * keys]       classes  [planes * regions]               counts [groups]      order [groups]
 *     vectors -> sorted, merged,    bounds -> column words -> shared ->       maps -> range,       count -> order
 *                window cut                   row words by shuffles           count
 * Masks: an interval [s, e) of rows touches tiles [s / 64, ceil(e / 64)) and covers [ceil(s / 64), e / 64); the last row counts as
 *   the end of its tile. As intervals of a key are separated by a hidden row, a key covers a tile through one interval alone:
 *   OR of the touched tiles over the keys is visible, AND of the covered ones is full. 32 tiles of one key are one word:
 *
 *     rows      |....####|########|########|###.....|      '|' tile edge, '#' visible
 *     touched        1        1        1        1
 *     covered        0        1        1        0
 *
 *   A word that no key touches is 0 and one that all keys cover by their interval m is all ones: most need no look at the keys.
 *   Bitmap stripes replace what they store: bits of a block and the window decide, two rows a lane.
 */
#include "cuda/launch_kernel.cuh"
#include "cuda/plan_bounds.cuh"

enum {
    WARP = 32,
    CLASS_THREADS = WARP * FM_PLAN_WORD_TILES,
    GROUP_THREADS = 256, /* of counts and order */
    LANE_KEYS = FM_PLAN_BLOCK / WARP,
    MOST_WORDS = 8,      /* of a column that a block makes: 64 bytes in a row of memory */
    ENOUGH_BLOCKS = 128, /* of CLASS_THREADS: about one for each multiprocessor */
    BLOCK_TILES = FM_PLAN_GROUP / FM_PLAN_BLOCK,
    BLOCK_WORDS = FM_PLAN_GROUP * FM_PLAN_GROUP / 64,
    BLOCK_HIDDEN = -1, /* as in mask/mask.h */
    BLOCK_VISIBLE = -2
};
static_assert((int)FM_PLAN_WORD_TILES == (int)WARP, "a warp for each column of a region, a lane for each bit of a word");
static_assert(CLASS_THREADS <= 1024, "the most threads of a block");
static_assert(LANE_KEYS == 2, "a lane holds two keys of a column of tiles");
static_assert(BLOCK_TILES == 2, "a word of 32 tiles has two bits for each bitmap block");

static const uint32_t ALL_LANES = 0xffffffffu;

/* ---- classes ---- */

/* A bound, 0 or more, in half tiles: even on a tile's edge, odd inside a tile. At most 2^26, so that nothing overflows. */
static __device__ __forceinline__ int32_t half_tiles(int32_t row) {
    return (int32_t)((uint32_t)row / FM_PLAN_BLOCK * 2 + ((uint32_t)row % FM_PLAN_BLOCK != 0));
}

/* Bits n .. 31 of a word; n 0 .. 32. */
static __device__ __forceinline__ uint32_t bits_from(int32_t n) { return __funnelshift_lc(0, ALL_LANES, (uint32_t)n); }

/* A column of tiles in half tiles; intervals that are empty are [0, 0). */
typedef struct tile_column {
    int32_t start[LANE_KEYS][FM_MAX_INTERVALS], end[LANE_KEYS][FM_MAX_INTERVALS]; /* of this lane's keys */
    int32_t first_touched, end_touched;                                           /* rows outside see no key */
    int32_t cover_start, cover_end; /* in lane m: rows inside see every key, by interval m of each */
} tile_column;

static __device__ __forceinline__ void load_keys(tile_column *column, const fm_device_plan *plan, const fm_interval *bounds) {
#pragma unroll
    for (int m = 0; m < FM_MAX_INTERVALS; m++) {
#pragma unroll
        for (int k = 0; k < LANE_KEYS; k++) {
            int2 b = make_int2(0, 0);
            if (m < plan->intervals) {
                b = *reinterpret_cast<const int2 *>(bounds + (int64_t)m * plan->bounds_stride + WARP * k);
            }
            const int32_t end = half_tiles(b.y);
            column->start[k][m] = b.x < b.y ? half_tiles(b.x) : 0;
            /* The last tile has no rows past the last: it ends on its edge. */
            column->end[k][m] = b.x >= b.y ? 0 : b.y == plan->rows ? end + (end & 1) : end;
        }
    }
}

static __device__ __forceinline__ void load_column(tile_column *column, const fm_device_plan *plan, int64_t plane, int32_t key) {
    const int32_t lane = (int32_t)(threadIdx.x % WARP);
    load_keys(column, plan, plan->bounds + plane * plan->intervals * plan->bounds_stride + key + lane);
    column->cover_start = column->cover_end = 0;
    int32_t first = INT32_MAX, end = 0;
#pragma unroll
    for (int m = 0; m < FM_MAX_INTERVALS; m++) {
        const int32_t s0 = column->start[0][m], s1 = column->start[1][m], e0 = column->end[0][m], e1 = column->end[1][m];
        first = min(first, min(e0 > 0 ? s0 : INT32_MAX, e1 > 0 ? s1 : INT32_MAX));
        end = max(end, max(e0, e1));
        if (m < plan->intervals) {
            const int32_t cover_start = __reduce_max_sync(ALL_LANES, max(s0, s1));
            const int32_t cover_end = __reduce_min_sync(ALL_LANES, min(e0, e1));
            column->cover_start = lane == m ? cover_start : column->cover_start;
            column->cover_end = lane == m ? cover_end : column->cover_end;
        }
    }
    column->first_touched = __reduce_min_sync(ALL_LANES, first);
    column->end_touched = __reduce_max_sync(ALL_LANES, end);
}

/* The word of one column of tiles, from the intervals of its 64 keys: tiles 32 word .. 32 word + 31. */
static __device__ __forceinline__ fm_tile_word interval_word(const tile_column *column, int32_t intervals, int32_t word) {
    const int32_t base = 2 * FM_PLAN_WORD_TILES * word, most = 2 * FM_PLAN_WORD_TILES;
    uint32_t visible = 0, full = ALL_LANES;
#pragma unroll
    for (int k = 0; k < LANE_KEYS; k++) {
        uint32_t covered = 0;
#pragma unroll
        for (int m = 0; m < FM_MAX_INTERVALS; m++) {
            if (m < intervals) {
                const int32_t s = min(max(column->start[k][m] - base, 0), most), e = min(max(column->end[k][m] - base, 0), most);
                visible |= bits_from(s >> 1) & ~bits_from((e + 1) >> 1);
                covered |= bits_from((s + 1) >> 1) & ~bits_from(e >> 1);
            }
        }
        full &= covered;
    }
    return fm_tile_word{__reduce_or_sync(ALL_LANES, visible), __reduce_and_sync(ALL_LANES, full)};
}

/* Bits n .. 63; n 0 .. 64. */
static __device__ __forceinline__ uint64_t long_bits_from(int32_t n) {
    return (uint64_t)bits_from(max(n - 32, 0)) << 32 | bits_from(min(n, 32));
}

/* Keys of [key, key + 64) that the window lets a row see. */
static __device__ __forceinline__ uint64_t window_bits(fm_cuda_window window, int32_t row, int32_t key) {
    const int32_t first = clamp_row((int64_t)row - key - window.last, 64);
    const int32_t end = clamp_row((int64_t)row - key - window.first + 1, 64);
    return long_bits_from(first) & ~long_bits_from(end);
}

/* One tile of a bitmap block: row, key are its first; bits the block's words of its rows and keys. */
static __device__ __forceinline__ void bitmap_tile(const fm_device_plan *plan, fm_cuda_window window, const uint64_t *bits,
                                                   int32_t row, int32_t key, bool *visible, bool *full) {
    bool some = false, all = key + FM_PLAN_BLOCK <= plan->columns;
#pragma unroll 1
    for (int32_t r = (int32_t)(threadIdx.x % WARP); r < FM_PLAN_BLOCK; r += WARP) {
        const uint64_t seen = row + r < plan->rows ? bits[2 * r] & window_bits(window, row + r, key) : 0;
        some = some || seen != 0;
        all = all && (seen == ~(uint64_t)0 || row + r >= plan->rows);
    }
    *visible = __any_sync(ALL_LANES, some);
    *full = __all_sync(ALL_LANES, all) && *visible;
}

/* What the blocks of a bitmap stripe leave of the window's word; entirely visible ones leave it as it is. */
static __device__ fm_tile_word bitmap_word(const fm_device_plan *plan, fm_cuda_window window, int32_t slot, int32_t key,
                                           int32_t word, fm_tile_word tiles) {
    const int32_t blocks = FM_PLAN_WORD_TILES / BLOCK_TILES, block0 = word * blocks;
    const int32_t lane = (int32_t)(threadIdx.x % WARP), count = min(plan->row_blocks - block0, blocks);
    const int32_t *index = plan->block_index + (int64_t)slot * plan->row_blocks + block0;
    const int32_t mine = lane < count ? index[lane] : BLOCK_HIDDEN;
    for (int32_t i = 0; i < count; i++) {
        const int32_t block = __shfl_sync(ALL_LANES, mine, i);
        if (block == BLOCK_VISIBLE) {
            continue;
        }
        for (int32_t t = BLOCK_TILES * i; t < BLOCK_TILES * (i + 1); t++) {
            bool visible = false, full = false;
            if (block >= 0) {
                const int32_t row = t % BLOCK_TILES * FM_PLAN_BLOCK;
                const uint64_t *bits = plan->blocks + (int64_t)block * BLOCK_WORDS + 2 * row + key % FM_PLAN_GROUP / 64;
                bitmap_tile(plan, window, bits, block0 * FM_PLAN_GROUP + t * FM_PLAN_BLOCK, key, &visible, &full);
            }
            tiles.visible = (tiles.visible & ~(1u << t)) | (uint32_t)visible << t;
            tiles.full = (tiles.full & ~(1u << t)) | (uint32_t)full << t;
        }
    }
    return tiles;
}

/* Word `word` of a column: from what its keys have in common, or else from the keys. The same in all lanes. */
static __device__ __forceinline__ fm_tile_word column_word(const tile_column *column, const fm_device_plan *plan, int32_t word) {
    const int32_t base = 2 * FM_PLAN_WORD_TILES * word, tiles_end = 2 * plan->column_lines.tiles;
    const int32_t end = min(base + 2 * FM_PLAN_WORD_TILES, tiles_end);
    if (column->end_touched <= base || column->first_touched >= end) {
        return fm_tile_word{0, 0};
    }
    if (__any_sync(ALL_LANES, column->cover_start <= base && column->cover_end >= end)) {
        const uint32_t all = ~bits_from((end - base) / 2);
        return fm_tile_word{all, all};
    }
    return interval_word(column, plan->intervals, word);
}

/* Words first .. first + words - 1 of the column of tiles that starts with key, one a lane. */
static __device__ __forceinline__ fm_tile_word column_words(const fm_device_plan *plan, fm_cuda_window window, int64_t plane,
                                                            int32_t key, int32_t first, int32_t words) {
    const int32_t lane = (int32_t)(threadIdx.x % WARP);
    const int32_t slot = plan->stripe_slot != NULL ? plan->stripe_slot[plane * plan->stripes + key / FM_PLAN_GROUP] : -1;
    fm_tile_word mine = {0, 0};
    tile_column column;
    load_column(&column, plan, plane, key);
#pragma unroll 1
    for (int32_t i = 0; i < words; i++) {
        const fm_tile_word tiles = column_word(&column, plan, first + i);
        mine = lane == i ? tiles : mine;
    }
    for (int32_t i = 0; slot >= 0 && i < words; i++) { /* in a loop of its own, where the keys' registers are free */
        fm_tile_word tiles = {__shfl_sync(ALL_LANES, mine.visible, i), __shfl_sync(ALL_LANES, mine.full, i)};
        if (tiles.visible != 0) {
            tiles = bitmap_word(plan, window, slot, key, first + i, tiles);
        }
        mine = lane == i ? tiles : mine;
    }
    return mine;
}

/* Bit c of lane r becomes bit r of lane c: quarters of the 32 x 32 bits change places, then quarters of the quarters. */
static __device__ __forceinline__ uint32_t transpose_bits(uint32_t x) {
    uint32_t low = 0x0000ffff; /* bits whose number has bit j clear */
#pragma unroll
    for (uint32_t j = WARP / 2; j > 0; j /= 2, low ^= low << j) {
        const uint32_t other = __shfl_xor_sync(ALL_LANES, x, j);
        x = (threadIdx.x & j) != 0 ? (x & ~low) | (other >> j & low) : (x & low) | (other << j & ~low);
    }
    return x;
}

/* A block makes words_a_block words of 32 columns of tiles of one plane, and with them words of the rows of tiles across. */
static __global__ void __launch_bounds__(CLASS_THREADS)
    classes_kernel(const __grid_constant__ fm_device_plan plan, const fm_cuda_window window, const int32_t words_a_block) {
    __shared__ fm_tile_word shared_words[MOST_WORDS][FM_PLAN_WORD_TILES + 1]; /* + 1: other banks for each lane */
    const fm_tile_lines *columns = &plan.column_lines, *rows = &plan.row_lines;
    const int32_t lane = (int32_t)(threadIdx.x % WARP), warp = (int32_t)(threadIdx.x / WARP);
    /* In 32 bits, which hold the blocks of a grid: each of 1024 threads divides. */
    const uint32_t stacks = (uint32_t)(columns->words + words_a_block - 1) / (uint32_t)words_a_block;
    const uint32_t across = blockIdx.x / stacks, row_words = (uint32_t)rows->words;
    const int32_t first = (int32_t)(blockIdx.x - across * stacks) * words_a_block, row_word = (int32_t)(across % row_words);
    const int64_t plane = across / row_words;
    const int32_t words = min(columns->words - first, words_a_block), line = row_word * FM_PLAN_WORD_TILES + warp;
    fm_tile_word mine = {0, 0};
    if (line < columns->lines) {
        mine = column_words(&plan, window, plane, line * FM_PLAN_BLOCK, first, words);
    }
    if (lane < words) {
        shared_words[lane][warp] = mine;
        if (line < columns->lines) {
            columns->map[(plane * columns->lines + line) * columns->words + first + lane] = mine;
        }
    }
    __syncthreads();
    if (warp < words) {
        const fm_tile_word tiles = shared_words[warp][lane];
        const fm_tile_word transposed = {transpose_bits(tiles.visible), transpose_bits(tiles.full)};
        const int32_t row = (first + warp) * FM_PLAN_WORD_TILES + lane;
        if (row < rows->lines) {
            rows->map[(plane * rows->lines + row) * rows->words + row_word] = transposed;
        }
    }
}

/* ---- counts and order ---- */

static __device__ void count_group(const fm_tile_lines *lines, int64_t at) {
    const int64_t plane = at / lines->groups;
    const int32_t lane = (int32_t)(threadIdx.x % WARP), line = 2 * (int32_t)(at % lines->groups);
    const fm_tile_word *a = lines->map + (plane * lines->lines + line) * lines->words;
    const fm_tile_word *b = line + 1 < lines->lines ? a + lines->words : a;
    int32_t first = INT32_MAX, end = 0, count = 0;
    for (int32_t w = lane; w < lines->words; w += WARP) {
        const uint32_t visible = a[w].visible | b[w].visible;
        if (visible != 0) {
            first = min(first, w * FM_PLAN_WORD_TILES + __ffs((int)visible) - 1);
            end = (w + 1) * FM_PLAN_WORD_TILES - __clz((int)visible);
            count += __popc(visible);
        }
    }
    first = __reduce_min_sync(ALL_LANES, first);
    end = __reduce_max_sync(ALL_LANES, end);
    count = __reduce_add_sync(ALL_LANES, count);
    if (lane == 0) {
        lines->range[at] = count > 0 ? fm_interval{first, end} : fm_interval{0, 0};
        lines->count[at] = count;
    }
}

/* A group's place: groups that are longer, and earlier ones that are as long. Exact and free of any order of execution; the squared
 * groups of a plane are few: 2^20 for 128K tokens, 2^26 for 1M. */
static __device__ void place_group(const fm_tile_lines *lines, int64_t at) {
    const int64_t plane = at / lines->groups;
    const int32_t groups = lines->groups, group = (int32_t)(at - plane * groups);
    const int32_t *count = lines->count + plane * groups, own = count[group];
    int32_t place = 0;
#pragma unroll 4
    for (int32_t j = (int32_t)(threadIdx.x % WARP); j < groups; j += WARP) {
        place += count[j] > own - (j < group);
    }
    place = __reduce_add_sync(ALL_LANES, place);
    if (threadIdx.x % WARP == 0) {
        lines->order[plane * groups + place] = group;
    }
}

/* The group of this warp: groups of all planes' rows, then of all planes' columns. */
static __device__ __forceinline__ const fm_tile_lines *group_of_warp(const fm_device_plan *plan, int64_t *at) {
    const int64_t planes = (int64_t)plan->batch * plan->heads, rows = planes * plan->row_lines.groups;
    const int64_t i = ((int64_t)blockIdx.x * GROUP_THREADS + threadIdx.x) / WARP;
    const fm_tile_lines *lines = i < rows ? &plan->row_lines : &plan->column_lines;
    *at = i < rows ? i : i - rows;
    return *at < planes * lines->groups ? lines : NULL;
}

static __global__ void __launch_bounds__(GROUP_THREADS) counts_kernel(const __grid_constant__ fm_device_plan plan) {
    int64_t at;
    const fm_tile_lines *lines = group_of_warp(&plan, &at);
    if (lines != NULL) {
        count_group(lines, at);
    }
}

static __global__ void __launch_bounds__(GROUP_THREADS) order_kernel(const __grid_constant__ fm_device_plan plan) {
    int64_t at;
    const fm_tile_lines *lines = group_of_warp(&plan, &at);
    if (lines != NULL) {
        place_group(lines, at);
    }
}

/* ---- launches ---- */

/* Blocks are counted along x alone, so that any number of planes fits: 2^31 - 1 blocks would be more than 1 TB of plan. */
static int launch(const void *kernel, int64_t blocks, int threads, void **arguments, void *stream) {
    return launch_kernel(kernel, launch_shape{blocks, 1, threads, 0}, arguments, stream);
}

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int launch_classes(fm_device_plan *plan, fm_cuda_window *window, int64_t planes, void *stream) {
    const int64_t words = plan->column_lines.words, across = planes * plan->row_lines.words;
    int32_t words_a_block = 1;
    while (words_a_block < MOST_WORDS && across * words >= (int64_t)2 * ENOUGH_BLOCKS * words_a_block) {
        words_a_block *= 2;
    }
    void *arguments[] = {plan, window, &words_a_block};
    return launch((const void *)classes_kernel, across * divide_up(words, words_a_block), CLASS_THREADS, arguments, stream);
}

static int build(fm_device_plan plan, fm_mask_vectors vectors, fm_cuda_window window, bounds_source source, void *stream) {
    const int64_t planes = (int64_t)plan.batch * plan.heads, keys = planes * plan.bounds_stride;
    const int64_t groups = planes * plan.row_lines.groups + planes * plan.column_lines.groups;
    const int64_t group_blocks = divide_up(groups * WARP, GROUP_THREADS);
    void *bounds[] = {&plan, &vectors, &window, &source}, *alone[] = {&plan};
    int error = launch((const void *)bounds_kernel, divide_up(keys, BOUNDS_THREADS), BOUNDS_THREADS, bounds, stream);
    if (error == cudaSuccess) {
        error = launch_classes(&plan, &window, planes, stream);
    }
    if (error == cudaSuccess) {
        error = launch((const void *)counts_kernel, group_blocks, GROUP_THREADS, alone, stream);
    }
    if (error == cudaSuccess) {
        error = launch((const void *)order_kernel, group_blocks, GROUP_THREADS, alone, stream);
    }
    return error;
}

int fm_cuda_plan_from_vectors(const fm_device_plan *plan, const fm_mask_vectors *vectors, fm_cuda_window window, void *stream) {
    return build(*plan, *vectors, window, FROM_VECTORS, stream);
}

int fm_cuda_plan_from_bounds(const fm_device_plan *plan, fm_cuda_window window, void *stream) {
    return build(*plan, fm_mask_vectors{}, window, FROM_BOUNDS, stream);
}

int fm_cuda_plan_from_nothing(const fm_device_plan *plan, fm_cuda_window window, void *stream) {
    return build(*plan, fm_mask_vectors{}, window, FROM_NOTHING, stream);
}
