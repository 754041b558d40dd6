/* The two masker warps of the forward kernel. For each partial step of its team a masker turns the plan's intervals and bitmaps into
 * words of its rows, while steps before are in work, so that consumers test one bit an element and no more. */
#ifndef FM_CUDA_SM90_FORWARD_MASKER_CUH
#define FM_CUDA_SM90_FORWARD_MASKER_CUH

#include "cuda/sm90/forward_producer.cuh"

/* Lane 4 n + t's words of the rows of keys 8 n + 2 t, + 1 become lane 4 g + t's words of the keys of rows g and g + 8: byte 2 h + r,
 * bit n says whether row g + 8 r sees key 64 h + 8 n + 2 t (even), + 1 (odd). Of each byte 8 lanes x 8 bits are transposed. */
static __device__ __forceinline__ mask_rows turn_words(mask_rows words) {
    const uint32_t lane = thread_again() % 32; /* what follows from it would be kept, and spill */
#pragma unroll
    for (uint32_t i = 4; i > 0; i /= 2) { /* lanes 4 i apart swap bits that are i apart */
        const uint32_t low = i == 4 ? 0x0f0f0f0f : i == 2 ? 0x33333333 : 0x55555555;
        const bool is_upper = (lane & 4 * i) != 0;
        const uint32_t kept = is_upper ? ~low : low, by = is_upper ? 32 - i : i;
        const uint32_t even = __shfl_xor_sync(ALL_LANES, words.even, 4 * i), odd = __shfl_xor_sync(ALL_LANES, words.odd, 4 * i);
        words.even = (words.even & kept) | (__funnelshift_l(even, even, by) & ~kept);
        words.odd = (words.odd & kept) | (__funnelshift_l(odd, odd, by) & ~kept);
    }
    return words;
}

/* Row 0 and key 0 of a job's words. */
typedef struct job_place {
    int32_t row, key, half; /* half: of the step, where the words begin */
} job_place;
static __device__ __forceinline__ job_place job_place_of(const forward_job *job, int team) {
    const int half = sees_second(step_classes(job->what, team)) ? 1 : 0;
    return job_place{job->group * FM_PLAN_GROUP + team * TEAM_ROWS, key_of(job->what, half), half};
}

/* Where a stripe is a bitmap: hides from words what its bits do. */
static __device__ __forceinline__ void and_bitmap(const fm_device_plan *plan, const forward_job *job, int team,
                                                  mask_rows (*words)[32]) {
    const job_place at = job_place_of(job, team);
    const tile_mask mask = tile_mask_at(plan, job->plane, at.row, at.key);
    const uint32_t lane = threadIdx.x % 32;
    if (!mask.is_hidden && mask.bits == NULL) {
        return;
    }
#pragma unroll 1
    for (int32_t w = 0; w < TEAM_WARPS; w++) {
        mask_rows seen = {0, 0};
#pragma unroll
        for (int i = 0; i < 2 * HALVES && !mask.is_hidden; i++) { /* byte i */
            const int32_t row = at.row + 16 * w + (int32_t)lane / 4 + i % 2 * 8;
            const int32_t word = 2 * (row % FM_PLAN_GROUP) + (at.key % FM_PLAN_GROUP / FM_PLAN_BLOCK + i / 2) % 2;
            const uint2 bits = __ldg(reinterpret_cast<const uint2 *>(mask.bits) + word);
            seen.even |= mask_rows_every_eighth(bits, lane % 4 * 2) << (8 * i);
            seen.odd |= mask_rows_every_eighth(bits, lane % 4 * 2 + 1) << (8 * i);
        }
        words[w][lane].even &= seen.even;
        words[w][lane].odd &= seen.odd;
    }
}

/* A step's words for the four warps of a team, h in them counting the halves that the team's scores hold; full halves all ones. */
static __device__ __forceinline__ void make_words(const fm_device_plan *plan, const forward_job *job, int team,
                                                  mask_rows (*to)[32]) {
    const uint32_t classes = step_classes(job->what, team);
    const job_place at = job_place_of(job, team);
    const fm_interval *bounds =
        plan->bounds + (int64_t)job->plane * plan->intervals * plan->bounds_stride + at.key + thread_again() % 32 * 2;
    mask_rows rows[2][2] = {}; /* of a half, rows 32 i .. */
#pragma unroll 1
    for (int m = plan->intervals; m > 0; m--, bounds += plan->bounds_stride) {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            int4 b = make_int4(0, INT32_MAX, 0, INT32_MAX);
            if (half_is_partial(classes, at.half + h)) { /* no half is past the second */
                b = __ldg(reinterpret_cast<const int4 *>(bounds + h * FM_PLAN_BLOCK));
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                rows[h][i].even |= mask_rows_between(b.x - at.row - 32 * i, b.y - at.row - 32 * i);
                rows[h][i].odd |= mask_rows_between(b.z - at.row - 32 * i, b.w - at.row - 32 * i);
            }
        }
    }
#pragma unroll
    for (int w = 0; w < TEAM_WARPS; w++) { /* 16 rows each */
        const uint32_t order = w % 2 == 0 ? 0x5410 : 0x7632;
        const mask_rows low = rows[0][w / 2], high = rows[1][w / 2];
        to[w][threadIdx.x % 32] =
            turn_words(mask_rows{__byte_perm(low.even, high.even, order), __byte_perm(low.odd, high.odd, order)});
    }
    if (__builtin_expect(plan->stripe_slot != NULL, 0)) {
        and_bitmap(plan, job, team, to);
    }
}

static __device__ __forceinline__ void mask_steps(const producer *x, int team) {
    forward_tail *tail = x->tail;
    for (ring_place at = {0, 0};; at = ring_after(at)) {
        ptx_mbarrier_wait(TAIL_BARRIER(x, job_full, team * STAGES + at.stage), at.phase);
        const forward_job *job = &tail->job[team][at.stage];
        if (job->what == STEP_NONE) {
            break;
        }
        ptx_mbarrier_wait(TAIL_BARRIER(x, words_empty, team * STAGES + at.stage), at.phase ^ 1);
        make_words(&x->p->plan, job, team, tail->words[team][at.stage]);
        ptx_mbarrier_arrive(TAIL_BARRIER(x, words_full, team * STAGES + at.stage));
    }
}

#endif
