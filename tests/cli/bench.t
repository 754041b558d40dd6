# flashmask bench: what its lines hold; times differ from run to run

    $ bench() { flashmask bench --head-dim 8 --runs 1 "$@" >lines; echo "$? after $(wc -l <lines) lines"; }
    $ bench; sed 's/.*"mask":"\([^"]*\)".*"agrees":\([a-z]*\).*/\1 \2/' lines
    0 after 15 lines
    full true
    causal true
    sliding_window true
    causal_document true
    document true
    share_question true
    global_sliding_window true
    causal_blockwise true
    prefix_lm_document true
    prefix_lm_causal true
    qk_sparse true
    random_eviction true
    chat_pack true
    pairs_pack true
    code_pack true
    $ bench --mask document,causal --samples 2 --heads 2 --heads-kv 1 --dtype bf16; sed 's/,"mask_ms.*//' lines
    0 after 3 lines
    {"bench":"attention","mask":"causal","seq":4096,"mask_heads":1,"visible_pairs":8390656,"density":0.500122,"mask_bytes":32768,"fallback_bytes":0,"dense_bytes":16777216
    {"bench":"attention","mask":"document","sample":0,"seq":4096,"mask_heads":1,"visible_pairs":5708314,"density":0.340242,"mask_bytes":32768,"fallback_bytes":0,"dense_bytes":16777216
    {"bench":"attention","mask":"document","sample":1,"seq":4096,"mask_heads":1,"visible_pairs":4373286,"density":0.260668,"mask_bytes":32768,"fallback_bytes":0,"dense_bytes":16777216
    $ tr ',{' '\n\n' <lines | sed -n 's/^"\(commit\|isa\|machine\|median_ms\|p10_ms\|p90_ms\|runs\|threads\|tflops\|version\)":.*/\1/p' | sort | uniq -c
          3 commit
          3 isa
          3 machine
          6 median_ms
          6 p10_ms
          6 p90_ms
          6 runs
          6 tflops
          3 threads
          3 version
    $ FLASHMASK_CPU_ISA=generic bench --mask causal; grep -c '"isa":"generic"' lines
    0 after 1 lines
    1

Memory of masks and plans: at most 8 bytes an interval and key, and plans far below the masks.

    $ bench --plan-only; sed 's/.*"mask":"\([^"]*\)".*"seq":\([0-9]*\).*"mask_bytes":\([0-9]*\).*/\1 \2 \3/' lines
    0 after 24 lines
    full 131072 1048576
    causal 131072 1048576
    sliding_window 131072 1048576
    causal_document 131072 1048576
    document 131072 1048576
    share_question 131072 1048576
    global_sliding_window 131072 2097152
    causal_blockwise 131072 2097152
    prefix_lm_document 131072 1048576
    prefix_lm_causal 131072 1048576
    qk_sparse 131072 1048576
    random_eviction 131072 1048576
    full 1048576 8388608
    causal 1048576 8388608
    sliding_window 1048576 8388608
    causal_document 1048576 8388608
    document 1048576 8388608
    share_question 1048576 8388608
    global_sliding_window 1048576 16777216
    causal_blockwise 1048576 16777216
    prefix_lm_document 1048576 8388608
    prefix_lm_causal 1048576 8388608
    qk_sparse 1048576 8388608
    random_eviction 1048576 8388608
    $ sed 's/.*"block_m":128[^}]*"bytes":\([0-9]*\).*/\1/' lines | awk '{ print ($1 <= 4 * 1024 * 1024 ? "fits" : $0) }' | sort | uniq -c
         24 fits

Random masks in bitmaps.

    $ bench --fallback --seq 1024; sed 's/.*"mask":"\([^"]*\)".*"fallback_bytes":\([0-9]*\),"dense_bytes":\([0-9]*\).*"agrees":\([a-z]*\).*/\1 \2 \3 \4/' lines
    0 after 3 lines
    random_sparse_1% 131360 1048576 true
    random_sparse_10% 131360 1048576 true
    random_sparse_50% 131360 1048576 true

Bad usage.

    $ flashmask bench --seq 5000
    ! flashmask: --seq: the benchmark has 4096, 8192, 32768, 131072 and 1048576 tokens
    [2]
    $ flashmask bench --mask causal,caual
    ! flashmask: --mask: no 'caual' here; there are full causal sliding_window causal_document document share_question global_sliding_window causal_blockwise prefix_lm_document prefix_lm_causal qk_sparse random_eviction chat_pack pairs_pack code_pack
    [2]
    $ flashmask bench --fallback --mask causal
    ! flashmask: --mask: no 'causal' here; there are random_sparse_1% random_sparse_10% random_sparse_50%
    [2]
    $ flashmask bench --mask ''
    ! flashmask: --mask: is empty
    [2]
    $ flashmask bench --data /nowhere
    ! flashmask: --data: no length files in /nowhere; name their folder
    [2]
    $ flashmask bench --samples 6
    ! flashmask: --samples: 6 is outside 1 .. 5
    [2]
    $ FLASHMASK_CPU_ISA=mmx flashmask bench --mask causal
    ! flashmask: bench: FLASHMASK_CPU_ISA: is "mmx", needs generic, avx2 or avx512
    [2]
