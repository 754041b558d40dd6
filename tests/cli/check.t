# flashmask check: attention with a mask against the f64 reference

Errors depend on the machine; what is left of the table is names and verdicts.

    $ verdicts() { sed 's/^\([A-Za-z]*\) *[0-9].* \(ok\|DIFFERS\)$/\1 \2/; /tolerance = /d'; }
    $ flashmask check --mask causal_document:lengths=100+28+60 --heads 4 --heads-kv 2 --head-dim 40 --head-dim-v 24 | verdicts
    spec   causal_document:lengths=100+28+60
    shape  batch 1, rows 188, keys 188, heads 4:2, head dim 40:24, f32

    O ok
    LSE ok
    dQ ok
    dK ok
    dV ok

    agrees with the f64 reference; plain: the same computation in f32 without tiles

    $ flashmask check --mask sliding_window:window=17 --seq 200 --rows 70 --dtype bf16 --threads 1 | verdicts
    spec   sliding_window:window=17
    shape  batch 1, rows 70, keys 200, heads 1:1, head dim 64:64, bf16

    O ok
    LSE ok
    dQ ok
    dK ok
    dV ok

    agrees with the f64 reference; plain: the same computation in bf16 without tiles

    $ flashmask check --mask head_windows:windows=3/0+9/9 --seq 130 --dtype f16 --seed 5 | verdicts
    spec   head_windows:windows=3/0+9/9
    shape  batch 1, rows 130, keys 130, heads 2:2, head dim 64:64, f16

    O ok
    LSE ok
    dQ ok
    dK ok
    dV ok

    agrees with the f64 reference; plain: the same computation in f16 without tiles

    $ flashmask check --mask random_sparse:density=0.1 --seq 150 | tail -n 1
    agrees with the f64 reference; plain: the same computation in f32 without tiles

Rows that see nothing.

    $ flashmask check --mask padding:pads=3/0+0/70 --seq 96 | tail -n 1
    agrees with the f64 reference; plain: the same computation in f32 without tiles

JSON.

    $ flashmask check --mask causal --seq 65 --json | sed 's/\(error\|plain\|floor\|tolerance\)": [^,]*/\1": E/'
    {
      "mask": "causal",
      "batch": 1,
      "rows": 65,
      "keys": 65,
      "heads": 1,
      "heads_kv": 1,
      "head_dim": 64,
      "head_dim_v": 64,
      "dtype": "f32",
      "results": {
        "O": {
          "error": E,
          "plain": E,
          "floor": E,
          "tolerance": E,
          "agrees": true
        },
        "LSE": {
          "error": E,
          "plain": E,
          "floor": E,
          "tolerance": E,
          "agrees": true
        },
        "dQ": {
          "error": E,
          "plain": E,
          "floor": E,
          "tolerance": E,
          "agrees": true
        },
        "dK": {
          "error": E,
          "plain": E,
          "floor": E,
          "tolerance": E,
          "agrees": true
        },
        "dV": {
          "error": E,
          "plain": E,
          "floor": E,
          "tolerance": E,
          "agrees": true
        }
      },
      "agrees": true
    }

Bad usage.

    $ flashmask check --mask causal --seq 8 --heads 3 --heads-kv 2
    ! flashmask: attention: key: has 2 heads, of which query's 3 is no multiple
    [2]
    $ flashmask check --mask causal --seq 8 --head-dim 257
    ! flashmask: --head-dim: 257 is outside 1 .. 256
    [2]
    $ flashmask check --mask head_windows:windows=1/0+2/0 --seq 8 --heads 3
    ! flashmask: attention: mask: has 2 heads, needs 1, key's 3 or query's 3
    [2]
    $ flashmask check --mask causal --seq 8 --dtype f64
    ! flashmask: --dtype: 'f64' is none of f32, f16, bf16
    [2]
    $ flashmask check --mask causal --tile 64x64
    ! flashmask: check: no option '--tile'; see 'flashmask check --help'
    [2]

What OpenMP makes of its environment is no number of threads: libomp takes -1 for one, and says so on standard error.

    $ for n in -1 garbage 0 1000; do OMP_NUM_THREADS=$n flashmask check --mask causal --seq 70 2>/dev/null | tail -n 1; done
    agrees with the f64 reference; plain: the same computation in f32 without tiles
    agrees with the f64 reference; plain: the same computation in f32 without tiles
    agrees with the f64 reference; plain: the same computation in f32 without tiles
    agrees with the f64 reference; plain: the same computation in f32 without tiles
