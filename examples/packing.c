/* Three preference pairs in sequences of 16 tokens: what a training loop needs of them. */
#include <flashmask/flashmask.h>
#include <flashmask/masks.h>
#include <stdio.h>
#include <stdlib.h>

enum { CAPACITY = 16 };

static void check(fm_status status) {
    if (status != FM_OK) {
        fprintf(stderr, "%s: %s\n", fm_status_name(status), fm_error_message());
        exit(1);
    }
}

static void print_row(const char *name, const int32_t *values) {
    printf("%-13s", name);
    for (int t = 0; t < CAPACITY; t++) {
        printf("%3d", values[t]);
    }
    printf("\n");
}

int main(void) {
    const int64_t replies[3][2] = {{2, 3}, {4, 1}, {2, 2}}; /* chosen, rejected */
    const fm_question pairs[3] = {{3, 2, replies[0]}, {2, 2, replies[1]}, {5, 2, replies[2]}};
    int32_t documents[CAPACITY], positions[CAPACITY], predicted_by[CAPACITY];
    uint8_t labels[CAPACITY];
    fm_packing *packing;
    check(fm_pack_questions(3, pairs, CAPACITY, FM_PACK_BEST_FIT, &packing));

    fm_packed_arrays arrays = FM_PACKED_ARRAYS_INIT;
    arrays.document_ids = documents;
    arrays.position_ids = positions;
    arrays.predicted_by = predicted_by;
    arrays.labels = labels;
    for (int64_t s = 0; s < fm_packing_sequence_count(packing); s++) {
        const fm_piece *pieces; /* where the tokens of which pair go */
        int64_t count, terms = 0;
        check(fm_packing_sequence(packing, s, &pieces, &count));
        check(fm_packing_arrays(packing, s, &arrays));
        printf("sequence %d: pairs", (int)s);
        for (int64_t k = 0; k < count; k++) {
            printf(" %d", (int)pieces[k].document);
        }
        printf("\n");
        print_row("document_ids", documents);
        print_row("position_ids", positions);
        print_row("predicted_by", predicted_by);
        for (int t = 0; t < CAPACITY; t++) { /* loss += cross_entropy(logits[predicted_by[t]], tokens[t]) */
            terms += labels[t];
        }
        printf("the loss has %d terms\n", (int)terms);
    }

    fm_mask *mask; /* of all sequences, a batch item each: for fm_attention_forward or a plan */
    int64_t visible;
    check(fm_packing_mask(packing, 0, fm_packing_sequence_count(packing), true, &mask));
    check(fm_mask_visible_pairs(mask, &visible));
    printf("%d of %d pairs are visible\n", (int)visible, (int)fm_packing_sequence_count(packing) * CAPACITY * CAPACITY);
    fm_mask_free(mask);
    fm_packing_free(packing);
    return 0;
}
