# Every mask that --mask can name

Six tokens each, as in the pictures of masks.h.

    $ p() { flashmask show --width 12 "$@" | sed -n 's/^|\(.*\)|$/\1/p' | tr '\n' '/' | sed 's,/$,,'; echo; }
    $ p --mask full --seq 6
    xxxxxx/xxxxxx/xxxxxx/xxxxxx/xxxxxx/xxxxxx
    $ p --mask causal --seq 6
    x...../xx..../xxx.../xxxx../xxxxx./xxxxxx
    $ p --mask sliding_window:left=2,right=0 --seq 6
    x...../xx..../xxx.../.xxx../..xxx./...xxx
    $ p --mask sliding_window:window=3 --seq 6
    x...../xx..../xxx.../.xxx../..xxx./...xxx
    $ p --mask sliding_window:left=-1,right=1 --seq 6
    xx..../xxx.../xxxx../xxxxx./xxxxxx/xxxxxx
    $ p --mask sink_window:sink=1,window=2 --seq 6
    x...../xx..../xxx.../x.xx../x..xx./x...xx
    $ p --mask document_sink_window:lengths=2+4,sink=1,window=1
    x...../xx..../..x.../..xx../..x.x./..x..x
    $ p --mask documents_sink_window:lengths=2+4,sink=1,window=1
    x...../xx..../..x.../..xx../..x.x./..x..x
    $ p --mask global_sliding_window:global=1,left=1,right=1 --seq 6
    xxxxxx/xxx.../xxxx../x.xxx./x..xxx/x...xx
    $ p --mask document:lengths=2+4
    xx..../xx..../..xxxx/..xxxx/..xxxx/..xxxx
    $ p --mask causal_document:lengths=2+4
    x...../xx..../..x.../..xx../..xxx./..xxxx
    $ p --mask causal_document:lengths=2+3 --seq 6
    x...../xx..../..x.../..xx../..xxx./......
    $ p --mask prefix_lm_causal:prefix=3 --seq 6
    xxx.../xxx.../xxx.../xxxx../xxxxx./xxxxxx
    $ p --mask prefix_lm_document:lengths=2/2+2/4
    xx..../xx..../..xx../..xx../..xxx./..xxxx
    $ p --mask share_question:lengths=2/2/2
    x...../xx..../xxx.../xxxx../xx..x./xx..xx
    $ p --mask share_question:lengths=2/2/2,bidirectional=1
    xx..../xx..../xxx.../xxxx../xx..x./xx..xx
    $ p --mask prefix_tree:nodes=-1/2+0/2+0/2
    x...../xx..../xxx.../xxxx../xx..x./xx..xx
    $ p --mask causal_blockwise:lengths=2+2+2
    x...../xx..../..x.../..xx../xxxxx./xxxxxx
    $ p --mask qk_sparse:spans=1/3 --seq 6
    x...../x...../x...../x...../xxxxx./xxxxxx
    $ p --mask head_windows:windows=1/0 --seq 6
    x...../xx..../.xx.../..xx../...xx./....xx
    $ p --mask padding:pads=1/1 --seq 6
    ....../.xxxx./.xxxx./.xxxx./.xxxx./......
    $ p --mask image_spans:lengths=6,spans=1/3
    x...../xxxx../xxxx../xxxx../xxxxx./xxxxxx
    $ p --mask random_sparse:density=1 --seq 6
    xxxxxx/xxxxxx/xxxxxx/xxxxxx/xxxxxx/xxxxxx

Drawn masks: the same seed gives the same mask, another one another.

    $ p --mask hash_sparse:buckets=2 --seq 6
    x...../.x..../x.x.../.x.x../x.x.x./.x.x.x
    $ p --mask hash_sparse:buckets=1 --seq 6
    x...../xx..../xxx.../xxxx../xxxxx./xxxxxx
    $ p --mask random_eviction:start=3 --seq 6
    x...../xx..../xxx.../xx.x../x..xx./...xxx
    $ p --mask random_sparse:density=0.5 --seq 6 --seed 7 >a; p --mask random_sparse:density=0.5 --seq 6 --seed 7 | cmp - a
    $ p --mask random_sparse:density=0.5 --seq 6 --seed 8 | cmp -s - a
    [1]
    $ flashmask show --mask random_eviction --seq 64 --heads 3 --width 0 | sed -n 2p
    shape     batch 1, heads 3, rows 64, keys 64

A block mask.

    $ npy keep.npy "{'descr': '|b1', 'fortran_order': False, 'shape': (2, 3), }" '\001\000\001\000\001\001'
    $ flashmask show --mask blocks:file=keep.npy,block=16 --rows 32 --seq 40 --width 10 --tile 16x16 | tail -n +7
              128x128: 1 tile, 0 skipped, 0 full, 1 partial; efficiency 4.7%; plan 76 bytes

    +----------+
    |####    xx|
    |####    xx|
    |    ####xx|
    |    ####xx|
    +----------+
    one character: 8 rows x 4 keys
    blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible

The same array as a dense mask.

    $ p --mask blocks:file=keep.npy,block=1 --rows 2 --seq 3
    x.x/.xx
    $ p --mask blocks:file=keep.npy,block=1 --rows 3 --seq 3

    ! flashmask: --mask blocks: keep.npy is not a bool or uint8 array [3, 3] or [B, Hm, 3, 3]

Other names for them.

    $ p --mask Causal-Document-Mask:lengths=2+4
    x...../xx..../..x.../..xx../..xxx./..xxxx
    $ p --mask 'Prefix LM Causal:prefix=3' --seq 6
    xxx.../xxx.../xxx.../xxxx../xxxxx./xxxxxx
    $ p --mask 'Global + Sliding Window:global=1,left=1,right=1' --seq 6
    xxxxxx/xxx.../xxxx../x.xxx./x..xxx/x...xx
    $ p --mask dpo:lengths=2/2/2
    x...../xx..../xxx.../xxxx../xx..x./xx..xx

Vectors in the published convention: causal LTS, causal LTS and LTE, LTS and UTE, all four.

    $ h() { echo "{'descr': '<i4', 'fortran_order': False, 'shape': ($1), }"; }
    $ npy one.npy "$(h 3,1)" '\003\000\000\000\002\000\000\000\003\000\000\000'
    $ p --vectors one.npy --causal 1
    x../xx./x.x
    $ npy two.npy "$(h 1,1,3,2)" '\001\000\000\000\002\000\000\000\003\000\000\000\003\000\000\000\003\000\000\000\003\000\000\000'
    $ p --vectors two.npy --causal 1
    x../.x./xxx
    $ p --vectors two.npy --causal 0
       /   /
    $ p --vectors two.npy --causal 1 --rows 2
    xx./.xx
    $ npy four.npy "$(h 1,4)" '\001\000\000\000\002\000\000\000\003\000\000\000\011\000\000\000'
    $ p --vectors four.npy --causal 0 --rows 5
    x/./x/./.

Lengths from files: columns apart by tabs, JSON arrays, comments and a header.

    $ printf '# two documents\nlength\n2\n\n4\n' >lengths.tsv
    $ p --mask causal_document:file=lengths.tsv
    x...../xx..../..x.../..xx../..xxx./..xxxx
    $ printf 'prompt\tchosen\trejected\n2\t2\t2\n' >pairs.tsv
    $ p --mask share_question:file=pairs.tsv
    x...../xx..../xxx.../xxxx../xx..x./xx..xx
    $ printf '[1,1]\r\n[3, 1]\r\n' >turns.jsonl
    $ p --mask causal_document:file=turns.jsonl
    x...../xx..../..x.../..xx../..xxx./..xxxx
    $ flashmask show --mask "share_question:file=$data/preference_lengths.tsv" --width 0 | sed 's/spec.*/spec/; s/; plan.*//'
    spec
    shape     batch 1, heads 1, rows 477,278, keys 477,278
    visible   69,255,040 of 227,794,289,284 pairs, density 0.000304
    mask      3,818,224 bytes: up to 1 interval a key, 2 vectors of 1,909,112 bytes
    dense     212 GiB, a byte a pair: 59,660 times as much
    tiles     64x64: 55,621,764 tiles, 55,592,634 skipped, 8,094 full, 21,036 partial; efficiency 58.0%
              128x128: 13,905,441 tiles, 13,895,139 skipped, 987 full, 9,315 partial; efficiency 41.0%

The list of them.

    $ flashmask masks | grep -c '^[a-z]'
    22
    $ flashmask masks | sed -n '/^sliding/,/^sink/p'
    sliding_window[:window=W][,left=L][,right=R]
        window=W: the last W keys, the row's own included; or left keys before the row's own and right behind, -1: all
        also: window
    sink_window:sink=S,window=W
