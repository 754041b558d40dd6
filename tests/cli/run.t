# flashmask run: results of small arrays, and bad input that leaves no file behind

Queries of zero weigh all visible keys alike: means of the values 1, 2, 3 and logarithms of their number.

    $ zero='\000\000\000\000'; one='\000\000\200\077'; two='\000\000\000\100'; three='\000\000\100\100'
    $ array() { npy "$1" "{'descr': '$2', 'fortran_order': False, 'shape': ($3), }" "$4"; }
    $ array q.npy '<f4' '1, 3, 1, 1' "$zero$zero$zero"; cp q.npy k.npy
    $ array v.npy '<f4' '1, 3, 1, 1' "$one$two$three"
    $ array g.npy '<f4' '1, 3, 1, 1' "$one$one$one"
    $ attend() { flashmask run --query q.npy --key k.npy --value v.npy "$@" | sed 's/  *[0-9.]* ms/ TIME/'; }
    $ floats() { od -A n -t f4 -v "$1" | tr -s ' ' '\n' | tail -n "$2" | awk '{ printf "%.4f ", $1 }'; echo; }
    $ attend --output o.npy --lse l.npy
    shape     batch 1, rows 3, keys 3, heads 1:1, head dim 1:1, f32
    forward TIME
    output     float32 [1, 3, 1, 1] in o.npy
    lse        float32 [1, 1, 3] in l.npy
    $ floats o.npy 3; floats l.npy 3
    2.0000 2.0000 2.0000
    1.0986 1.0986 1.0986
    $ attend --output o.npy --causal 1 --lse l.npy
    shape     batch 1, rows 3, keys 3, heads 1:1, head dim 1:1, f32
    forward TIME
    output     float32 [1, 3, 1, 1] in o.npy
    lse        float32 [1, 1, 3] in l.npy
    $ floats o.npy 3; floats l.npy 3
    1.0000 1.5000 2.0000
    0.0000 0.6931 1.0986
    $ attend --output o.npy --mask sliding_window:window=2 >/dev/null; floats o.npy 3
    1.0000 1.5000 2.5000
    $ array lts.npy '<i4' '3, 1' '\002\000\000\000\003\000\000\000\003\000\000\000'
    $ attend --output o.npy --vectors lts.npy --causal 1 >/dev/null; floats o.npy 3
    1.0000 1.5000 2.5000

Backward, and a sink that takes as much as a key.

    $ attend --output o.npy --causal 1 --grad-output g.npy --grad-value dv.npy --grad-query dq.npy --grad-key dk.npy
    shape     batch 1, rows 3, keys 3, heads 1:1, head dim 1:1, f32
    forward TIME
    backward TIME
    output     float32 [1, 3, 1, 1] in o.npy
    grad_query float32 [1, 3, 1, 1] in dq.npy
    grad_key   float32 [1, 3, 1, 1] in dk.npy
    grad_value float32 [1, 3, 1, 1] in dv.npy
    $ floats dv.npy 3
    1.8333 0.8333 0.3333
    $ array s.npy '<f4' '1,' "$zero"
    $ attend --output o.npy --causal 1 --sinks s.npy --grad-output g.npy --grad-sinks ds.npy >/dev/null
    $ floats o.npy 3; floats ds.npy 1
    0.5000 1.0000 1.5000
    -0.9583
    $ flashmask run --query q.npy --key k.npy --value v.npy --output o.npy --json | grep -v _ms
    {
      "mask": null,
      "results": {
        "output": {
          "dtype": "float32",
          "shape": [
            1,
            3,
            1,
            1
          ],
          "file": "o.npy"
        }
      }
    }

One .safetensors file in, one out.

    $ tensor() { printf '"%s":{"dtype":"F32","shape":[1,3,1,1],"data_offsets":[%s]}' "$1" "$2"; }
    $ st() { printf "\\$(printf %03o ${#2})\000\000\000\000\000\000\000" >"$1"; printf '%s' "$2" >>"$1"; printf "$3" >>"$1"; }
    $ st in.safetensors "{$(tensor query 0,12),$(tensor key 12,24),$(tensor value 24,36)}" "$zero$zero$zero$zero$zero$zero$one$two$three"
    $ flashmask run --tensors in.safetensors --output out.safetensors --causal 1 | sed 's/  *[0-9.]* ms/ TIME/'
    shape     batch 1, rows 3, keys 3, heads 1:1, head dim 1:1, f32
    forward TIME
    output     float32 [1, 3, 1, 1] in out.safetensors
    lse        float32 [1, 1, 3] in out.safetensors
    $ header() { head -c $((8 + $(od -A n -t u1 -N 1 "$1"))) "$1" | tail -c +9; echo; }
    $ header out.safetensors
    {"output":{"dtype":"F32","shape":[1,3,1,1],"data_offsets":[0,12]},"lse":{"dtype":"F32","shape":[1,1,3],"data_offsets":[12,24]}}
    $ floats out.safetensors 6
    1.0000 1.5000 2.0000 0.0000 0.6931 1.0986

What does not fit together.

    $ ls >before
    $ bad() { flashmask run --query q.npy --key k.npy --value v.npy "$@"; }
    $ flashmask run
    ! flashmask: --query FILE.npy is needed, or --tensors FILE.safetensors
    [2]
    $ flashmask run --query q.npy --key k.npy --output n.npy
    ! flashmask: --value FILE.npy is needed, or --tensors FILE.safetensors
    [2]
    $ bad
    ! flashmask: --output FILE is needed
    [2]
    $ bad --output n.safetensors
    ! flashmask: --output: 'n.safetensors' needs --tensors; what comes from .npy files goes to .npy files
    [2]
    $ bad --output n.npy --lse n.npy
    ! flashmask: n.npy: two results would have this name
    [2]
    $ bad --output n.npy --lse no/l.npy
    ! flashmask: no/l.npy: cannot be written: No such file or directory
    [2]
    $ bad --output /dev/null
    ! flashmask: /dev/null: is there and is no plain file
    [2]
    $ bad --output n.npy --grad-query dq2.npy
    ! flashmask: --grad-query: needs --grad-output
    [2]
    $ bad --output n.npy --grad-output g.npy
    ! flashmask: --grad-output: names no result; --grad-query, --grad-key, --grad-value or --grad-sinks is needed
    [2]
    $ bad --output n.npy --grad-output g.npy --grad-sinks ds2.npy
    ! flashmask: --grad-sinks: needs --sinks
    [2]
    $ bad --output n.npy --grad-lse l.npy
    ! flashmask: grad_lse is given without grad_output
    [2]
    $ bad --output n.npy --grad-output l.npy --grad-query dq2.npy
    ! flashmask: l.npy: has 3 dimensions; [batch, sequence, heads, head dim] is needed
    [2]
    $ bad --output n.npy --sinks v.npy
    ! flashmask: v.npy: is not float32 [heads] of the query's extents
    [2]
    $ bad --output n.npy --tensors in.safetensors
    ! flashmask: --query: does not go with --tensors, which brings all arrays
    [2]
    $ bad --output n.npy --mask causal_document:lengths=4
    ! flashmask: --mask causal_document: lengths sum to 4, but there are 3 keys
    [2]
    $ bad --output n.npy --vectors lts.npy
    ! flashmask: --vectors: --causal 0 or 1 must say what they mean
    [2]
    $ bad --output n.npy --scale nan
    ! flashmask: --scale: 'nan' is not a number
    [2]
    $ bad --output n.npy --backend gpu
    ! flashmask: --backend: 'gpu' is none of cpu, reference
    [2]
    $ array q8.npy '<f8' '1, 1, 1, 1' "$zero$zero"; flashmask run --query q8.npy --key k.npy --value v.npy --output n.npy; rm q8.npy
    ! flashmask: q8.npy: elements are float64; float32, float16 or bfloat16 is needed, or --backend reference
    $ flashmask run --query s.npy --key k.npy --value v.npy --output n.npy
    ! flashmask: s.npy: has 1 dimensions; [batch, sequence, heads, head dim] is needed
    [2]
    $ flashmask run --query lts.npy --key k.npy --value v.npy --output n.npy
    ! flashmask: lts.npy: has 2 dimensions; [batch, sequence, heads, head dim] is needed
    [2]
    $ st more.st "{$(tensor query 0,12),$(tensor keys 12,24)}" "$zero$zero$zero$zero$zero$zero"; flashmask run --tensors more.st --output n; rm more.st
    ! flashmask: more.st: tensor 'keys' has no use; query, key, value, sinks, grad_output and grad_lse are read
    $ st less.st "{$(tensor query 0,12)}" "$zero$zero$zero"; flashmask run --tensors less.st --output n; rm less.st
    ! flashmask: less.st: has no tensor 'key'
    $ st cut.st "{$(tensor query 0,12)}" "$zero$zero"; flashmask run --tensors cut.st --output n; rm cut.st
    ! flashmask: cut.st: ends inside its tensor query
    $ flashmask run --tensors q.npy --output n
    ! flashmask: q.npy: a header of 379676406402707 bytes; at most 16777216 are read
    [2]
    $ ls | diff before - && rm before
