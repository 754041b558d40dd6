/* Builders of the masks that people train with, and packing of documents into sequences.
 *
 * Every builder yields a mask of batch 1 and heads 1 unless its parameters say otherwise, in O(N) time. Lengths, rows and
 * columns are 0 .. 2^31 - 1, and so are sums of lengths; counts of parts may be 0, and an array of 0 entries NULL. How far
 * something reaches (left, right, sink, window, global, start, random) may pass the extents, up to 2^63 - 1: all there is.
 * FM_ERROR_ARGUMENT names what breaks this. Where lengths describe documents they follow each other from token 0; `padding`
 * more tokens stand at the end, see nothing and are seen by nobody. Pictures: 6 rows (queries) by 6 columns (keys), x =
 * visible. Causal and windows are aligned bottom-right when Sq and Sk differ. What is drawn is the same on every machine.
 */
#ifndef FLASHMASK_MASKS_H
#define FLASHMASK_MASKS_H

#include <flashmask/flashmask.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every key for every row.
 *   xxxxxx / xxxxxx / xxxxxx / xxxxxx / xxxxxx / xxxxxx */
FM_API fm_status fm_mask_full(int64_t Sq, int64_t Sk, fm_mask **out);

/* Row i sees keys 0 .. i + Sk - Sq.
 *   x..... / xx.... / xxx... / xxxx.. / xxxxx. / xxxxxx */
FM_API fm_status fm_mask_causal(int64_t Sq, int64_t Sk, fm_mask **out);

/* Row i sees keys i' - left .. i' + right, i' = i + Sk - Sq; -1: unlimited, lower is an error. A causal window of w keys,
 * the row's own included, is (w - 1, 0); where a window w means w keys before the row's own, it is (w, 0).
 *   left 2, right 0: x..... / xx.... / xxx... / .xxx.. / ..xxx. / ...xxx */
FM_API fm_status fm_mask_sliding_window(int64_t Sq, int64_t Sk, int64_t left, int64_t right, fm_mask **out);

/* Causal; a row sees the first `sink` keys and the last `window` keys, its own included. Window 0: the sink alone.
 *   sink 1, window 2: x..... / xx.... / xxx... / x.xx.. / x..xx. / x...xx */
FM_API fm_status fm_mask_sink_window(int64_t Sq, int64_t Sk, int64_t sink, int64_t window, fm_mask **out);

/* The same inside each document: a sink for each.
 *   lengths 2 + 4, sink 1, window 2: x..... / xx.... / ..x... / ..xx.. / ..xxx. / ..x.xx */
FM_API fm_status fm_mask_documents_sink_window(int64_t n, const int64_t *lengths, int64_t sink, int64_t window, int64_t padding,
                                               fm_mask **out);

/* The first `global` rows see everything, the first `global` keys are seen by everybody, others see a window
 * as in fm_mask_sliding_window.
 *   global 1, left 1, right 1: xxxxxx / xxx... / xxxx.. / x.xxx. / x..xxx / x...xx */
FM_API fm_status fm_mask_global_window(int64_t Sq, int64_t Sk, int64_t global, int64_t left, int64_t right, fm_mask **out);

/* Packed documents; a token sees its own document, causally or both ways.
 *   lengths 2 + 4, causal: x..... / xx.... / ..x... / ..xx.. / ..xxx. / ..xxxx */
FM_API fm_status fm_mask_documents(int64_t n, const int64_t *lengths, bool causal, int64_t padding, fm_mask **out);

/* Causal, and every row sees the first `prefix` keys, 0 .. Sk.
 *   prefix 3: xxx... / xxx... / xxx... / xxxx.. / xxxxx. / xxxxxx */
FM_API fm_status fm_mask_prefix_lm(int64_t Sq, int64_t Sk, int64_t prefix, fm_mask **out);

/* Packed documents of which the first prefix[k] tokens, 0 .. lengths[k], are seen by the whole document, the rest causally.
 *   lengths 2 + 4, prefix 2 + 2: xx.... / xx.... / ..xx.. / ..xx.. / ..xxx. / ..xxxx */
FM_API fm_status fm_mask_prefix_documents(int64_t n, const int64_t *prefix, const int64_t *lengths, int64_t padding,
                                          fm_mask **out);

/* One question followed by its answers; answer_lengths has `answers` entries and is read during the call only. Any part may
 * have no tokens. */
typedef struct fm_question {
    int64_t length, answers;
    const int64_t *answer_lengths;
} fm_question;

/* Answers see their question and themselves causally, never another answer (DPO, reward models, best of n). The question
 * is causal, or sees itself both ways with bidirectional_question.
 *   question 2, answers 2 + 2: x..... / xx.... / xxx... / xxxx.. / xx..x. / xx..xx */
FM_API fm_status fm_mask_share_question(int64_t n, const fm_question *questions, bool bidirectional_question, int64_t padding,
                                        fm_mask **out);

/* Tokens of a tree of segments (shared prefixes): a node sees itself causally and all its ancestors. parent[k] is a node or
 * -1 for a root; nodes come in any order. The layout is depth first, children in the order given; offset[k] (out, may be
 * NULL) is the first token of node k in it. FM_ERROR_ARGUMENT for a cycle or an unknown parent. A node and all below it are
 * tokens [tin, tout) of the layout: row q sees key k if and only if k <= q and q < tout of the node of k.
 *   0 <- 1, 0 <- 2, 2 tokens each: x..... / xx.... / xxx... / xxxx.. / xx..x. / xx..xx */
FM_API fm_status fm_mask_prefix_tree(int64_t nodes, const int64_t *parent, const int64_t *length, int64_t *offset, fm_mask **out);

/* Causal documents, of which the last also sees all earlier ones.
 *   lengths 2 + 2 + 2: x..... / xx.... / ..x... / ..xx.. / xxxxx. / xxxxxx */
FM_API fm_status fm_mask_causal_blockwise(int64_t n, const int64_t *lengths, fm_mask **out);

/* Causal; key j of a span [offset, offset + length) of keys is hidden from its own row and all others before the row of the
 * span's end: row i sees it if and only if i + Sk - Sq >= offset + length. Spans ascend and do not overlap.
 *   span 1 + 3: x..... / x..... / x..... / x..... / xxxxx. / xxxxxx */
FM_API fm_status fm_mask_qk_sparse(int64_t Sq, int64_t Sk, int64_t spans, const int64_t *offset, const int64_t *length,
                                   fm_mask **out);

/* Causal, and only where bucket[i] == bucket[j]; bucket has `length` entries of any value. O(N log N) and what the result
 * takes: keys whose bucket comes in more than FM_MAX_INTERVALS runs of tokens after them need the fallback.
 *   buckets 0 1 0 1 0 1: x..... / .x.... / x.x... / .x.x.. / x.x.x. / .x.x.x */
FM_API fm_status fm_mask_hash_sparse(int64_t length, const int32_t *bucket, const fm_mask_options *options, fm_mask **out);

/* Causal; from row `start` on, each row evicts for good one key before its own, drawn with splitmix64 from `seed`, each head
 * its own draw. Sq == Sk. A key evicted at row r is hidden from rows >= r. Head h of two masks with the same other
 * parameters is the same. Row 0 has nothing to evict.
 *   start 3, seed 1: x..... / xx.... / xxx... / x.xx.. / x.x.x. / x.x..x */
FM_API fm_status fm_mask_random_eviction(int64_t length, int64_t heads, int64_t start, uint64_t seed, fm_mask **out);

/* A sliding window of its own for each head, left and right as in fm_mask_sliding_window: [heads] each.
 *   left 2, right 0 in head 0: x..... / xx.... / xxx... / .xxx.. / ..xxx. / ...xxx */
FM_API fm_status fm_mask_head_windows(int64_t Sq, int64_t Sk, int64_t heads, const int64_t *left, const int64_t *right,
                                      fm_mask **out);

/* Padding on either side of each batch item: the first left_pad[b] and last right_pad[b] tokens see nothing and are seen by
 * nobody. There are max(Sq, Sk) tokens, of which the rows are the last Sq and the keys the last Sk. Both arrays: [batch].
 * Intersect with a causal or other mask.
 *   left 1, right 1: ...... / .xxxx. / .xxxx. / .xxxx. / .xxxx. / ...... */
FM_API fm_status fm_mask_padding(int64_t batch, int64_t Sq, int64_t Sk, const int64_t *left_pad, const int64_t *right_pad,
                                 fm_mask **out);

/* A block mask, keep: [Bm, Hm, ceil(Sq / block), ceil(Sk / block)], nonzero = visible; block a multiple of 16. A column with
 * more than FM_MAX_INTERVALS runs of blocks needs the fallback. O(blocks) and what the result takes.
 *   in blocks, checkerboard: x.x.x. / .x.x.x / x.x.x. / .x.x.x / x.x.x. / .x.x.x */
FM_API fm_status fm_mask_blocks(fm_mask_shape shape, int64_t block, const uint8_t *keep, const fm_mask_options *options,
                                fm_mask **out);

/* BigBird-like, in blocks (block a multiple of 16): the first `global` rows and columns of blocks, `window` blocks on either
 * side of the diagonal, which ends in the last block of either side, and `random` more blocks per other row of blocks (all
 * where fewer are left), drawn with splitmix64 from `seed`. Not causal. O(visible blocks) and what the result takes.
 *   in blocks, global 1, window 1, random 1, seed 1: xxxxxx / xxx.x. / xxxx.x / x.xxxx / xx.xxx / x.x.xx */
FM_API fm_status fm_mask_bigbird(int64_t Sq, int64_t Sk, int64_t block, int64_t global, int64_t window, int64_t random,
                                 uint64_t seed, const fm_mask_options *options, fm_mask **out);

/* Packed causal documents in which the tokens of one image span [offset, offset + length) see each other both ways. Spans
 * ascend, do not overlap and do not cross documents.
 *   one document, span 1 + 3: x..... / xxxx.. / xxxx.. / xxxx.. / xxxxx. / xxxxxx */
FM_API fm_status fm_mask_image_spans(int64_t n, const int64_t *lengths, int64_t spans, const int64_t *offset,
                                     const int64_t *length, fm_mask **out);

/* Each pair visible with probability `density`, 0 .. 1, drawn with splitmix64 from `seed`: exercises the fallback. O(Sq Sk).
 *   density 0.5, seed 1: ...xx. / ..x.x. / x.xx.. / ..xxxx / xx..x. / ..xxx. */
FM_API fm_status fm_mask_random_sparse(int64_t Sq, int64_t Sk, double density, uint64_t seed, const fm_mask_options *options,
                                       fm_mask **out);

/* ---- packing ------------------------------------------------------------------------------------------------------ */

/* Documents laid out in sequences of one capacity. Owns its memory. */
typedef struct fm_packing fm_packing;
typedef enum fm_pack_policy {
    FM_PACK_BEST_FIT = 0, /* best-fit decreasing: longest first, into the fullest sequence that still has room */
    FM_PACK_ARRIVAL = 1   /* in the order given; a document that does not fit starts the next sequence         */
} fm_pack_policy;
typedef enum fm_pack_overlong {
    FM_PACK_REFUSE = 0, /* FM_ERROR_ARGUMENT naming the first document longer than capacity           */
    FM_PACK_SPLIT = 1   /* cut into pieces of `capacity` tokens and a rest, each a document of its own */
} fm_pack_overlong;

/* Part of a document in a sequence: tokens [start, start + length) of document `document` of the input. */
typedef struct fm_piece {
    int64_t document, start, length;
} fm_piece;

/* n lengths, each >= 0 (zero-length documents get no piece); capacity 1 .. 2^31 - 1. O(n log n), the same on every machine:
 * of equal lengths the first comes first, of equally full sequences the earliest opened is filled. Pieces of one sequence lie
 * in input order, so that long documents do not gather at its start. FM_ERROR_LIMIT above 2^31 - 1 pieces. */
FM_API fm_status fm_pack_lengths(int64_t n, const int64_t *lengths, int64_t capacity, fm_pack_policy policy,
                                 fm_pack_overlong overlong, fm_packing **out);
FM_API void fm_packing_free(fm_packing *packing); /* NULL is accepted */
/* Both are 0 for NULL. */
FM_API int64_t fm_packing_sequence_count(const fm_packing *packing);
FM_API int64_t fm_packing_capacity(const fm_packing *packing);
/* Pieces of one sequence in layout order; the array belongs to the packing. */
FM_API fm_status fm_packing_sequence(const fm_packing *packing, int64_t sequence, const fm_piece **pieces, int64_t *count);

/* The same for n questions, 0 .. 2^31 - 1, each with its answers in one piece (a preference pair: prompt, chosen, rejected).
 * Lengths are 0 .. 2^31 - 1 and copied; what has no tokens at all gets no piece. FM_ERROR_ARGUMENT names the first question
 * that passes the capacity: it cannot be cut without parting answers from their question. */
FM_API fm_status fm_pack_questions(int64_t n, const fm_question *questions, int64_t capacity, fm_pack_policy policy,
                                   fm_packing **out);

/* What stands beside the tokens of one sequence. Each array has `capacity` entries, or is NULL and not wanted. */
typedef struct fm_packed_arrays {
    size_t size;
    int32_t *document_ids; /* 0, 1, .. for the pieces in layout order; -1: padding */
    int32_t *position_ids; /* from 0 in each piece; an answer goes on after its question; 0 in padding */
    int32_t *predicted_by; /* the token whose output predicts this one; -1: none, in padding or where a document starts */
    uint8_t *labels;       /* 1: counts in the loss. It is predicted, and if there are questions it belongs to an answer */
} fm_packed_arrays;
/* clang-format off */
#define FM_PACKED_ARRAYS_INIT {.size = sizeof(fm_packed_arrays)}
/* clang-format on */

/* predicted_by is the token before, but for the first token of an answer: there it is the last of the question, which a loss
 * on labels shifted by one gets wrong from the second answer on. No token predicts the first one of an answer to an empty
 * question. Capacity 10, a question of 2 with answers of 2 and 3, one of 1 with an answer of 1:
 *   token          0  1 | 2  3 | 4  5  6 || 7 | 8 || 9
 *                  question, answer, answer      padding
 *   document_ids   0  0   0  0   0  0  0    1   1   -1
 *   position_ids   0  1   2  3   2  3  4    0   1    0
 *   predicted_by  -1  0   1  2   1  4  5   -1   7   -1
 *   labels         0  0   1  1   1  1  1    0   1    0
 * The loss of token t compares tokens[t] with the logits of row predicted_by[t], where labels[t] is 1. */
FM_API fm_status fm_packing_arrays(const fm_packing *packing, int64_t sequence, const fm_packed_arrays *out);

/* The mask of sequences [first_sequence, first_sequence + count), at least one, as its batch items. Documents: as
 * fm_mask_documents, causal or both ways. Questions: as fm_mask_share_question, whose question sees itself both ways if not
 * causal. The padding at the end sees nothing. */
FM_API fm_status fm_packing_mask(const fm_packing *packing, int64_t first_sequence, int64_t count, bool causal, fm_mask **out);

#ifdef __cplusplus
}
#endif
#endif
