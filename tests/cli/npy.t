# Truncated and hostile .npy files

    $ show() { flashmask show --vectors "$1" --causal 1; }
    $ header() { echo "{'descr': '$1', 'fortran_order': $2, 'shape': $3, }"; }
    $ four='\001\000\000\000'

What is read: other orders and quotes, no last comma, blanks, versions 2 and 3, Fortran order where it says nothing.

    $ good() { flashmask show --vectors "$1" --causal 1 --width 0 | sed -n 3p; }
    $ npy plain.npy "$(header '<i4' False '(2, 1)')" "$four$four"; good plain.npy
    visible   1 of 4 pairs, density 0.25
    $ npy quotes.npy '{"shape":(2,1),"descr":"<i4","fortran_order":False}   ' "$four$four"; good quotes.npy
    visible   1 of 4 pairs, density 0.25
    $ npy fortran.npy "$(header '<i4' True '(2, 1)')" "$four$four"; good fortran.npy
    visible   1 of 4 pairs, density 0.25
    $ (printf '\223NUMPY\002\000\074\000\000\000'; tail -c +11 plain.npy) >v2.npy; good v2.npy
    visible   1 of 4 pairs, density 0.25
    $ (printf '\223NUMPY\003\000\074\000\000\000'; tail -c +11 plain.npy) >v3.npy; good v3.npy
    visible   1 of 4 pairs, density 0.25

Not there, not .npy, cut short.

    $ show missing.npy
    ! flashmask: missing.npy: No such file or directory
    [2]
    $ : >empty.npy; show empty.npy
    ! flashmask: empty.npy: ends inside its first 8 bytes
    [2]
    $ printf 'PK\003\004 a zip file' >zip.npy; show zip.npy
    ! flashmask: zip.npy: is no .npy file
    [2]
    $ head -c 7 plain.npy >cut.npy; show cut.npy
    ! flashmask: cut.npy: ends inside its first 8 bytes
    [2]
    $ head -c 9 plain.npy >cut.npy; show cut.npy
    ! flashmask: cut.npy: ends inside its header length
    [2]
    $ head -c 40 plain.npy >cut.npy; show cut.npy
    ! flashmask: cut.npy: ends inside its header
    [2]
    $ head -c 77 plain.npy >cut.npy; show cut.npy
    ! flashmask: cut.npy: ends inside its data
    [2]
    $ (cat plain.npy; printf 'x') >long.npy; show long.npy
    ! flashmask: long.npy: has data behind the array
    [2]
    $ (printf '\223NUMPY\004\000'; tail -c +9 plain.npy) >version.npy; show version.npy
    ! flashmask: version.npy: .npy version 4.0; 1.0, 2.0 and 3.0 are read
    [2]
    $ (printf '\223NUMPY\001\000\377\377'; tail -c +11 plain.npy) >past.npy; show past.npy
    ! flashmask: past.npy: ends inside its header
    [2]
    $ (printf '\223NUMPY\002\000\377\377\377\377'; tail -c +11 plain.npy) >huge.npy; show huge.npy
    ! flashmask: huge.npy: a header of 4294967295 bytes; at most 65536 are read
    [2]

Headers.

    $ bad() { npy bad.npy "$@"; show bad.npy; }
    $ bad "not a dictionary" ''
    ! flashmask: bad.npy: the header is not a dictionary
    [2]
    $ bad "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1), " "$four$four"
    ! flashmask: bad.npy: the header is not a dictionary of descr, fortran_order and shape
    [2]
    $ bad "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1), } import os" "$four$four"
    ! flashmask: bad.npy: the header has text behind its dictionary
    [2]
    $ bad "{'descr': '<i4', 'fortran_order': False}" "$four$four"
    ! flashmask: bad.npy: the header lacks descr, fortran_order or shape
    [2]
    $ bad "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (2, 1)}" "$four$four"
    ! flashmask: bad.npy: the header has two entries 'descr'
    [2]
    $ bad "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1), 'more': 1}" "$four$four"
    ! flashmask: bad.npy: the header has an unknown entry 'more'
    [2]
    $ bad "{'descr': '<i4', 'fortran_order': Maybe, 'shape': (2, 1)}" "$four$four"
    ! flashmask: bad.npy: fortran_order is neither True nor False
    [2]
    $ bad "{'descr': [('x', '<i4')], 'fortran_order': False, 'shape': (2, 1)}" "$four$four"
    ! flashmask: bad.npy: descr is not one plain type
    [2]
    $ bad "{'descr': '<i4" ''
    ! flashmask: bad.npy: descr is not one plain type
    [2]

Types.

    $ bad "$(header '>i4' False '(2, 1)')" "$four$four"
    ! flashmask: bad.npy: elements are big-endian ('>i4'); little-endian is accepted
    [2]
    $ bad "$(header '<i8' False '(1, 1)')" "$four$four"
    ! flashmask: --vectors bad.npy: elements are int64; int32 is needed
    [2]
    $ bad "$(header '<f4' False '(2, 1)')" "$four$four"
    ! flashmask: --vectors bad.npy: elements are float32; int32 is needed
    [2]
    $ bad "$(header '|O' False '(2, 1)')" "$four$four"
    ! flashmask: bad.npy: elements of type '|O' are not read; int32, int64, float32, float64, float16, bfloat16, uint8 and bool are
    [2]

Shapes.

    $ bad "$(header '<i4' True '(2, 2)')" "$four$four$four$four"
    ! flashmask: bad.npy: is in Fortran order; save numpy.ascontiguousarray(x) instead
    [2]
    $ bad "$(header '<i4' False '2')" "$four$four"
    ! flashmask: bad.npy: shape is not a tuple
    [2]
    $ bad "$(header '<i4' False '()')" "$four"
    ! flashmask: --vectors bad.npy: has rank 0; [Sk, C] or [B, Hm, Sk, C] is needed
    [2]
    $ bad "$(header '<i4' False '(2,)')" "$four$four"
    ! flashmask: --vectors bad.npy: has rank 1; [Sk, C] or [B, Hm, Sk, C] is needed
    [2]
    $ bad "$(header '<i4' False '(-2, 1)')" "$four$four"
    ! flashmask: bad.npy: shape has a negative extent
    [2]
    $ bad "$(header '<i4' False '(2.0, 1)')" "$four$four"
    ! flashmask: bad.npy: shape is not a tuple of whole numbers
    [2]
    $ bad "$(header '<i4' False '(2 1)')" "$four$four"
    ! flashmask: bad.npy: shape is not a tuple of whole numbers
    [2]
    $ bad "$(header '<i4' False '(99999999999999999999, 1)')" "$four$four"
    ! flashmask: bad.npy: shape has an extent past 2^63
    [2]
    $ bad "$(header '<i4' False '(4294967296, 4294967296)')" "$four$four"
    ! flashmask: bad.npy: shape is past 2^63 bytes
    [2]
    $ bad "$(header '<i4' False '(0, 9223372036854775807)')" ''
    ! flashmask: bad.npy: shape is past 2^63 bytes
    [2]
    $ bad "$(header '<i4' False '(1, 1, 1, 1, 1, 1, 1, 1, 1)')" "$four"
    ! flashmask: bad.npy: more than 8 dimensions
    [2]
    $ bad "$(header '<i4' False '(1000000000000, 1)')" "$four$four"
    ! flashmask: bad.npy: ends inside its data
    [2]
    $ bad "$(header '<i4' False '(1, 5)')" "$four$four$four$four$four"
    ! flashmask: --vectors bad.npy: 5 vectors; at most 4 are accepted
    [2]
    $ bad "$(header '<i4' False '(1, 3)')" "$four$four$four"
    ! flashmask: --vectors: vectors: is 3, needs 1 or 2 for a causal mask
    [2]
    $ bad "$(header '<i4' False '(0, 0, 2, 1)')" ''
    ! flashmask: --vectors: shape.batch: is 0, needs 1 .. 2^31 - 1
    [2]
    $ bad "$(header '<i4' False '(0, 1)')" ''
    spec      bad.npy
    shape     batch 1, heads 1, rows 0, keys 0
    visible   0 of 0 pairs, density 0
    mask      0 bytes: up to 0 intervals a key
    dense     0 bytes, a byte a pair
    tiles     64x64: 0 tiles, 0 skipped, 0 full, 0 partial; efficiency 0.0%; plan 16 bytes
              128x128: 0 tiles, 0 skipped, 0 full, 0 partial; efficiency 0.0%; plan 16 bytes

What goes with --vectors.

    $ flashmask show --vectors plain.npy
    ! flashmask: --vectors: --causal 0 or 1 must say what they mean
    [2]
    $ flashmask show --vectors plain.npy --causal 2
    ! flashmask: --causal: 2 is outside 0 .. 1
    [2]
    $ flashmask show --vectors plain.npy --causal 0
    ! flashmask: --vectors: vectors: is 1, needs 2 or 4 for a mask that is not causal
    [2]
    $ flashmask show --vectors plain.npy --causal 1 --seq 3
    ! flashmask: --vectors plain.npy: has 2 keys, but 3 are needed
    [2]
    $ npy u8.npy "$(header '|u1' False '(1, 1)')" '\001'; flashmask show --mask blocks:file=u8.npy --seq 200
    ! flashmask: --mask blocks: u8.npy is not a bool or uint8 array [2, 2] or [B, Hm, 2, 2]
    [2]
