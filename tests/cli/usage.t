# Bad usage: one line on standard error, nothing on standard output, status 2

    $ flashmask
    ! flashmask: no command given; see 'flashmask --help'
    [2]
    $ flashmask frobnicate
    ! flashmask: unknown command 'frobnicate'; see 'flashmask --help'
    [2]
    $ flashmask masks now
    ! flashmask: masks: takes no arguments
    [2]
    $ flashmask show
    ! flashmask: no mask given: --mask SPEC or --vectors FILE.npy is needed
    [2]
    $ flashmask show --mask causal --vectors x.npy
    ! flashmask: --mask and --vectors are given, but one of them is needed
    [2]
    $ flashmask show --frob
    ! flashmask: show: no option '--frob'; see 'flashmask show --help'
    [2]
    $ flashmask show --mask causal -xy
    ! flashmask: show: no option '-x'; see 'flashmask show --help'
    [2]
    $ flashmask check --mask causal --threads 1025
    ! flashmask: --threads: 1025 is outside 1 .. 1024
    [2]
    $ flashmask show --dtype f32 --mask causal
    ! flashmask: show: no option '--dtype'; see 'flashmask show --help'
    [2]
    $ flashmask show --mask
    ! flashmask: --mask: its value is missing
    [2]
    $ flashmask show --mask=
    ! flashmask: --mask: is empty
    [2]
    $ flashmask show causal
    ! flashmask: show: unexpected argument 'causal'
    [2]
    $ flashmask show --mask causal causal
    ! flashmask: show: unexpected argument 'causal'
    [2]
    $ flashmask show --mask causal --mask full
    ! flashmask: --mask: is given twice
    [2]
    $ flashmask show --mask causal --causal 1
    ! flashmask: --causal: goes with --vectors only; name a causal mask instead
    [2]

Masks and their keys.

    $ flashmask show --mask causl
    ! flashmask: --mask: unknown mask 'causl'; 'flashmask masks' lists them; the nearest is causal
    [2]
    $ flashmask show --mask Sliding-Windw:window=2
    ! flashmask: --mask: unknown mask 'Sliding-Windw'; 'flashmask masks' lists them; the nearest is sliding_window
    [2]
    $ flashmask show --mask alibi
    ! flashmask: --mask: unknown mask 'alibi'; 'flashmask masks' lists them
    [2]
    $ flashmask show --mask :lengths=1
    ! flashmask: --mask: unknown mask ''; 'flashmask masks' lists them
    [2]
    $ flashmask show --mask causal:left=1
    ! flashmask: --mask causal: unknown key 'left'; it takes none
    [2]
    $ flashmask show --mask sliding_window
    ! flashmask: --mask sliding_window: needs window=W, or left=L and right=R
    [2]
    $ flashmask show --mask sliding_window:left=1
    ! flashmask: --mask sliding_window: needs window=W, or left=L and right=R
    [2]
    $ flashmask show --mask sliding_window:window=5,left=3
    ! flashmask: --mask sliding_window: needs window=W, or left=L and right=R
    [2]
    $ flashmask show --mask sliding_window:lft=1
    ! flashmask: --mask sliding_window: unknown key 'lft'; it takes window, left, right
    [2]
    $ flashmask show --mask sliding_window:left
    ! flashmask: --mask sliding_window: 'left' is not key=value
    [2]
    $ flashmask show --mask sliding_window:left=,right=0
    ! flashmask: --mask sliding_window: left: '' is not a whole number
    [2]
    $ flashmask show --mask sliding_window:left=1,left=2
    ! flashmask: --mask sliding_window: left is given twice
    [2]
    $ flashmask show --mask sliding_window:left=1,,right=1
    ! flashmask: --mask sliding_window: '' is not key=value
    [2]
    $ flashmask show --mask sliding_window:left=-2,right=0
    ! flashmask: --mask sliding_window: left: -2 is outside -1 .. 2147483647
    [2]
    $ flashmask show --mask causal_document
    ! flashmask: --mask causal_document: needs lengths=N+... or file=PATH
    [2]
    $ flashmask show --mask causal_document:lengths=
    ! flashmask: --mask causal_document: lengths: '' is not a whole number
    [2]
    $ flashmask show --mask causal_document:lengths=1,2
    ! flashmask: --mask causal_document: '2' is not key=value; a list is joined by +
    [2]
    $ flashmask show --mask causal_document:lengths=1++2
    ! flashmask: --mask causal_document: lengths: '' is not a whole number
    [2]
    $ flashmask show --mask causal_document:lengths=1+-2
    ! flashmask: --mask causal_document: lengths: -2 is outside 0 .. 2147483647
    [2]
    $ flashmask show --mask causal_document:lengths=1+2x
    ! flashmask: --mask causal_document: lengths: '2x' is not a whole number
    [2]
    $ flashmask show --mask causal_document:lengths=1,file=x
    ! flashmask: --mask causal_document: give lengths or file, not both
    [2]
    $ flashmask show --mask causal_document:file=
    ! flashmask: --mask causal_document: file: no path given
    [2]
    $ flashmask show --mask causal_document:lengths=4294967296
    ! flashmask: --mask causal_document: lengths: 4294967296 is outside 0 .. 2147483647
    [2]
    $ flashmask show --mask causal_document:lengths=2147483647+2147483647
    ! flashmask: --mask causal_document: lengths[1]: is 2147483647 after 2147483647 tokens, needs 0 or more and 2^31 - 1 tokens or fewer in all
    [2]
    $ flashmask show --mask causal_document:lengths=10 --seq 9
    ! flashmask: --mask causal_document: lengths sum to 10, but there are 9 keys
    [2]
    $ flashmask show --mask causal_document:lengths=10 --rows 9
    ! flashmask: --mask causal_document: is square with 10 keys; 9 query rows do not fit
    [2]
    $ flashmask show --mask causal_blockwise:lengths=10+2 --seq 13
    ! flashmask: --mask causal_blockwise: lengths sum to 12, but there are 13 keys and this mask takes no padding
    [2]
    $ flashmask show --mask prefix_lm_document:lengths=3
    ! flashmask: --mask prefix_lm_document: entry 0: PREFIX/LENGTH needs 2 numbers, has 1
    [2]
    $ flashmask show --mask prefix_lm_document:lengths=4/3
    ! flashmask: --mask prefix_lm_document: prefix[0]: is 4, needs 0 .. lengths[0] (3)
    [2]
    $ flashmask show --mask prefix_tree:nodes=1/2+0/2
    ! flashmask: --mask prefix_tree: parent[0]: is 1, and following parents from there never ends at a root
    [2]
    $ flashmask show --mask qk_sparse:spans=1/3+2/3 --seq 9
    ! flashmask: --mask qk_sparse: offset[1]: is 2, needs 4 (end of the span before) .. 9 (end of the tokens)
    [2]
    $ flashmask show --mask random_sparse:density=1.5 --seq 9
    ! flashmask: --mask random_sparse: density: 1.5 is outside 0 .. 1
    [2]
    $ flashmask show --mask random_sparse:density=nan --seq 9
    ! flashmask: --mask random_sparse: density: 'nan' is not a number
    [2]
    $ flashmask show --mask random_sparse:density=0.5x --seq 9
    ! flashmask: --mask random_sparse: density: '0.5x' is not a number
    [2]

Numbers.

    $ flashmask show --mask causal --seq 12x
    ! flashmask: --seq: '12x' is not a whole number
    [2]
    $ flashmask show --mask causal --seq 0
    ! flashmask: --seq: 0 is outside 1 .. 2147483647
    [2]
    $ flashmask show --mask causal --seq -3
    ! flashmask: --seq: -3 is outside 1 .. 2147483647
    [2]
    $ flashmask show --mask causal --seq ''
    ! flashmask: --seq: '' is not a whole number
    [2]
    $ flashmask show --mask causal --seq 2147483648
    ! flashmask: --seq: 2147483648 is outside 1 .. 2147483647
    [2]
    $ flashmask show --mask causal --seq 99999999999999999999999
    ! flashmask: --seq: 99999999999999999999999 is outside 1 .. 2147483647
    [2]
    $ flashmask show --mask causal --seed -1
    ! flashmask: --seed: '-1' is not a whole number from 0
    [2]
    $ flashmask show --mask causal --seed 18446744073709551616
    ! flashmask: --seed: 18446744073709551616 is past 2^64 - 1
    [2]
    $ flashmask show --mask causal --tile 64
    ! flashmask: --tile: '64' is not MxN
    [2]
    $ flashmask show --mask causal --tile 64x0
    ! flashmask: --tile: 0 is outside 1 .. 1048576
    [2]
    $ flashmask show --mask causal --tile x64
    ! flashmask: --tile: '' is not a whole number
    [2]
    $ flashmask show --mask causal --tile 64x64x64
    ! flashmask: --tile: '64x64' is not a whole number
    [2]
    $ flashmask show --mask causal --width 513
    ! flashmask: --width: 513 is outside 0 .. 512
    [2]

Length files.

    $ flashmask show --mask causal_document:file=missing.tsv
    ! flashmask: missing.tsv: No such file or directory
    [2]
    $ flashmask show --mask causal_document:file=. 2>&1 | sed 's/:.*: /: /'
    flashmask: Is a directory
    $ printf '# nothing\n\n' >empty.tsv; flashmask show --mask causal_document:file=empty.tsv
    ! flashmask: empty.tsv: holds no numbers
    [2]
    $ printf 'length\nname\n' >twice.tsv; flashmask show --mask causal_document:file=twice.tsv
    ! flashmask: twice.tsv:2: 'name' is not a whole number
    [2]
    $ printf '5\n-1\n' >negative.tsv; flashmask show --mask causal_document:file=negative.tsv
    ! flashmask: negative.tsv:2: -1 is outside 0 .. 2147483647
    [2]
    $ printf '5\n1.5\n' >real.tsv; flashmask show --mask causal_document:file=real.tsv
    ! flashmask: real.tsv:2: '1.5' is not a whole number
    [2]
    $ printf '5\0006\n' >nul.tsv; flashmask show --mask causal_document:file=nul.tsv
    ! flashmask: nul.tsv:1: a NUL byte in a text file
    [2]
    $ printf '[1, 2\n' >open.jsonl; flashmask show --mask causal_document:file=open.jsonl
    ! flashmask: open.jsonl:1: not a JSON array: ']' expected near end of file
    [2]
    $ printf '[1, 2] 3\n' >behind.jsonl; flashmask show --mask causal_document:file=behind.jsonl
    ! flashmask: behind.jsonl:1: not a JSON array: end of file expected near '3'
    [2]
    $ printf '[1, "2"]\n' >string.jsonl; flashmask show --mask causal_document:file=string.jsonl
    ! flashmask: string.jsonl:1: entry 1 of the array is not a whole number
    [2]
    $ printf '[1, 1e3]\n' >real.jsonl; flashmask show --mask causal_document:file=real.jsonl
    ! flashmask: real.jsonl:1: entry 1 of the array is not a whole number
    [2]
    $ printf '[1, 3000000000]\n' >large.jsonl; flashmask show --mask causal_document:file=large.jsonl
    ! flashmask: large.jsonl:1: 3000000000 is outside 0 .. 2147483647
    [2]
    $ printf '1 2 3\n' >three.tsv; flashmask show --mask prefix_lm_document:file=three.tsv
    ! flashmask: --mask prefix_lm_document: entry 0: PREFIX/LENGTH needs 2 numbers, has 3
    [2]
    $ flashmask show --mask document:lengths=$(printf %0100d 5)
    ! flashmask: --mask document: lengths: '0000000000000000000000000000000000000000...' is 100 characters long, which no number takes
    [2]
    $ flashmask show --mask document:file=/dev/zero
    ! flashmask: /dev/zero:1: a NUL byte in a text file
    [2]
    $ flashmask show --mask document:file=.
    ! flashmask: .: Is a directory
    [2]
    $ printf '# lengths\n\nlength\n1\r\n[2]\n3' >ends.txt; flashmask show --mask document:file=ends.txt --width 0 --json | grep -E 'keys|pairs'
      "keys": 6,
      "visible_pairs": 14,

The demo's data.

    $ flashmask demo --data nowhere
    ! flashmask: --data: no length files in nowhere; name their folder
    [2]
    $ mkdir d; printf '[90]\n' >d/chat_turn_lengths.jsonl; flashmask demo --data d
    ! flashmask: d/preference_lengths.tsv: No such file or directory
    [2]
    $ printf '90 1\n' >d/preference_lengths.tsv; flashmask demo --data d
    ! flashmask: d/preference_lengths.tsv: record 0 has 2 numbers; a pair has three: prompt, chosen and rejected
    [2]
    $ printf '9000 1 1\n' >d/preference_lengths.tsv; flashmask demo --data d
    ! flashmask: d/preference_lengths.tsv: record 0 has 9002 tokens, a sequence holds 8192 and parts are not cut
    [2]

A full disk.

    $ flashmask masks >/dev/full
    ! flashmask: standard output: No space left on device
    [2]
