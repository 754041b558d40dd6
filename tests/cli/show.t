# flashmask show: statistics and picture

The worked example of the method.

    $ flashmask show --mask causal_document:lengths=1024+512+1536+1024 --tile 64x64
    spec      causal_document:lengths=1024+512+1536+1024
    shape     batch 1, heads 1, rows 4,096, keys 4,096
    visible   2,361,344 of 16,777,216 pairs, density 0.1407
    mask      32,768 bytes: up to 1 interval a key, 2 vectors of 16,384 bytes
    dense     16 MiB, a byte a pair: 512 times as much
    tiles     64x64: 4,096 tiles, 3,488 skipped, 544 full, 64 partial; efficiency 94.8%; plan 5.17 KiB
              128x128: 1,024 tiles, 864 skipped, 128 full, 32 partial; efficiency 90.1%; plan 2.55 KiB

    +----------------------------------------------------------------+
    |++                                                              |
    |##++                                                            |
    |####++                                                          |
    |######++                                                        |
    |########++                                                      |
    |##########++                                                    |
    |############++                                                  |
    |##############++                                                |
    |                ++                                              |
    |                ##++                                            |
    |                ####++                                          |
    |                ######++                                        |
    |                        ++                                      |
    |                        ##++                                    |
    |                        ####++                                  |
    |                        ######++                                |
    |                        ########++                              |
    |                        ##########++                            |
    |                        ############++                          |
    |                        ##############++                        |
    |                        ################++                      |
    |                        ##################++                    |
    |                        ####################++                  |
    |                        ######################++                |
    |                                                ++              |
    |                                                ##++            |
    |                                                ####++          |
    |                                                ######++        |
    |                                                ########++      |
    |                                                ##########++    |
    |                                                ############++  |
    |                                                ##############++|
    +----------------------------------------------------------------+
    one character: 128 rows x 64 keys
    blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible

Small masks show every pair.

    $ flashmask show --mask causal --seq 6
    spec      causal
    shape     batch 1, heads 1, rows 6, keys 6
    visible   21 of 36 pairs, density 0.5833
    mask      48 bytes: up to 1 interval a key, 2 vectors of 24 bytes
    dense     36 bytes, a byte a pair: 0.75 times as much
    tiles     64x64: 1 tile, 0 skipped, 0 full, 1 partial; efficiency 0.5%; plan 76 bytes
              128x128: 1 tile, 0 skipped, 0 full, 1 partial; efficiency 0.1%; plan 76 bytes

    +------+
    |x.....|
    |xx....|
    |xxx...|
    |xxxx..|
    |xxxxx.|
    |xxxxxx|
    +------+
    one character: 1 row x 1 key
    blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible

    $ flashmask show --mask causal --rows 3 --seq 5 --width 8 | sed -n '/^+/,$p'
    +-----+
    |xxx..|
    |xxxx.|
    |xxxxx|
    +-----+
    one character: 1 row x 1 key
    blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible

Batch items and heads.

    $ flashmask show --mask head_windows:windows=1/0+2/1 --seq 5
    spec      head_windows:windows=1/0+2/1
    shape     batch 1, heads 2, rows 5, keys 5
    visible   25 of 50 pairs, density 0.5
    mask      80 bytes: up to 1 interval a key, 2 vectors of 40 bytes
    dense     50 bytes, a byte a pair: 0.625 times as much
    tiles     64x64: 2 tiles, 0 skipped, 0 full, 2 partial; efficiency 0.3%; plan 136 bytes
              128x128: 2 tiles, 0 skipped, 0 full, 2 partial; efficiency 0.1%; plan 136 bytes

    +-----+
    |x....|
    |xx...|
    |.xx..|
    |..xx.|
    |...xx|
    +-----+
    one character: 1 row x 1 key
    blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible
    shown: batch item 0, head 0

    $ flashmask show --mask padding:pads=1/0+0/2 --seq 5 | tail -n 10
    +-----+
    |.....|
    |.xxxx|
    |.xxxx|
    |.xxxx|
    |.xxxx|
    +-----+
    one character: 1 row x 1 key
    blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible
    shown: batch item 0, head 0

The last key cuts a tile, which is never full; its pairs are still told apart.

    $ flashmask show --mask full --seq 100 --tile 64x64 --width 20 | tail -n +7
              128x128: 1 tile, 0 skipped, 0 full, 1 partial; efficiency 61.0%; plan 76 bytes

    +-------------+
    |########xxxxx|
    |########xxxxx|
    |########xxxxx|
    |########xxxxx|
    |########xxxxx|
    |########xxxxx|
    |########xxxxx|
    +-------------+
    one character: 16 rows x 8 keys
    blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible

A mask with bitmaps.

    $ flashmask show --mask bigbird:global=1,window=1,random=3,block=16 --seq 512 --width 32
    spec      bigbird:global=1,window=1,random=3,block=16
    shape     batch 1, heads 1, rows 512, keys 512
    visible   63,232 of 262,144 pairs, density 0.2412
    mask      32,848 bytes: up to 0 intervals a key, bitmaps of 32.1 KiB
    dense     256 KiB, a byte a pair: 7.98 times as much
    tiles     64x64: 64 tiles, 2 skipped, 0 full, 62 partial; efficiency 24.9%; plan 544 bytes
              128x128: 16 tiles, 0 skipped, 0 full, 16 partial; efficiency 24.1%; plan 256 bytes

    +--------------------------------+
    |xxxx+++++++++++x++++++++++x+++++|
    |x+xx+.+.+.+..+..........+....+..|
    |x..+xx+.......+..++....+.+..+...|
    |x....+xx++.......+.......+++..+.|
    |x......+xx+..+.+...+.+....+..+..|
    |x.+...++.+xx+........+......+.+.|
    |x+.....+...+xx+++...    ..+...+.|
    |x+++.....+...+xx+.+.    ..+.....|
    |x...+..+    ++.+xx+.........x...|
    |x+..+.+.    .....xxx+...+.+.....|
    |x......+..+........+xx+.++..++..|
    |x....++++......+.....+xx+.+.....|
    |x.........+......+.....+xx++.x+.|
    |x....+......+....+....x+.+xx+...|
    |x......+++....+.......+....+xx++|
    |x..++..........+.+......+...++xx|
    +--------------------------------+
    one character: 32 rows x 16 keys
    blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible

JSON.

    $ flashmask show --mask sliding_window:window=512 --seq 8192 --tile 128x128 --json
    {
      "mask": "sliding_window:window=512",
      "batch": 1,
      "heads": 1,
      "rows": 8192,
      "keys": 8192,
      "intervals": 1,
      "mask_bytes": 65536,
      "fallback_bytes": 0,
      "dense_bytes": 67108864,
      "visible_pairs": 4063488,
      "density": 0.0605506897,
      "tiles": [
        {
          "block_m": 128,
          "block_n": 128,
          "tiles": 4096,
          "skipped": 3786,
          "full": 186,
          "partial": 124,
          "efficiency": 0.800050403,
          "plan_bytes": 6808
        }
      ]
    }
    $ flashmask show --mask causal --seq 100 --json | grep -c block_m
    2

Many tokens.

    $ flashmask show --mask document:lengths=1000000+48576 --width 0
    spec      document:lengths=1000000+48576
    shape     batch 1, heads 1, rows 1,048,576, keys 1,048,576
    visible   1,002,359,627,776 of 1,099,511,627,776 pairs, density 0.9116
    mask      8,388,608 bytes: up to 1 interval a key, 2 vectors of 4,194,304 bytes
    dense     1 TiB, a byte a pair: 131,072 times as much
    tiles     64x64: 268,435,456 tiles, 23,718,750 skipped, 244,716,706 full, 0 partial; efficiency 100.0%; plan 960 KiB
              128x128: 67,108,864 tiles, 5,921,496 skipped, 61,170,985 full, 16,383 partial; efficiency 100.0%; plan 672 KiB
