# flashmask pack

    $ flashmask pack --help
    usage: flashmask pack FILE [OPTIONS]

    Document lengths into sequences, and the arrays beside their tokens.

      --kind documents|pairs|questions
                                   what a record of FILE is; needed
      --capacity N                 tokens of a packed sequence; needed
      --output OUT                 OUT.safetensors, or the beginning of the names of .npy files; needed
      --policy best_fit|arrival    fullest sequence that has room, or file order (default: best_fit)
      --overlong refuse|split      documents longer than a sequence (default: refuse)
      --help                       this text

Documents: the numbers of a line are summed. Both packings of 3 + 6, 7, 4, 9 tokens take three sequences of 12.

    $ printf '[3, 6]\n[7]\n[4]\n[9]\n' >chats.jsonl
    $ flashmask pack chats.jsonl --kind documents --capacity 12 --output out.safetensors
    input     4 records in 4 pieces, 29 tokens
    packed    3 sequences of 12 tokens, 80.56% used, 83.33% without the emptiest; no packing has fewer
    padded    4 sequences of 12 tokens, 60.42% used, a piece each
    arrays    pieces int64 [4, 4] in out.safetensors
              document_ids int32 [3, 12] in out.safetensors
              position_ids int32 [3, 12] in out.safetensors
              predicted_by int32 [3, 12] in out.safetensors
              labels uint8 [3, 12] in out.safetensors
              startend_row_indices int32 [3, 1, 12, 1] in out.safetensors
    $ flashmask pack chats.jsonl --kind documents --capacity 12 --policy arrival --output out.safetensors
    input     4 records in 4 pieces, 29 tokens
    packed    3 sequences of 12 tokens, 80.56% used, 83.33% without the emptiest; no packing has fewer
    padded    4 sequences of 12 tokens, 60.42% used, a piece each
    arrays    pieces int64 [4, 4] in out.safetensors
              document_ids int32 [3, 12] in out.safetensors
              position_ids int32 [3, 12] in out.safetensors
              predicted_by int32 [3, 12] in out.safetensors
              labels uint8 [3, 12] in out.safetensors
              startend_row_indices int32 [3, 1, 12, 1] in out.safetensors
    $ ls
    chats.jsonl
    out.safetensors

Pairs, into .npy files: 2 + 3 + 1 and 1 + 1 + 2 in one sequence of 11.

    $ printf 'prompt\tchosen\trejected\n2\t3\t1\n1\t1\t2\n' >pairs.tsv
    $ mkdir set; flashmask pack --kind pairs pairs.tsv --capacity 11 --output set/
    input     2 records in 2 pieces, 10 tokens
    packed    1 sequence of 11 tokens, 90.91% used; no packing has fewer
    padded    2 sequences of 11 tokens, 45.45% used, a piece each
    arrays    pieces int64 [2, 4] in set/pieces.npy
              document_ids int32 [1, 11] in set/document_ids.npy
              position_ids int32 [1, 11] in set/position_ids.npy
              predicted_by int32 [1, 11] in set/predicted_by.npy
              labels uint8 [1, 11] in set/labels.npy
              startend_row_indices int32 [1, 1, 11, 1] in set/startend_row_indices.npy
    $ numbers() { tail -c +129 "set/$1.npy" | od -An -v -w44 "-t$2" | tr -s ' '; }
    $ numbers document_ids d4
     0 0 0 0 0 0 1 1 1 1 -1
    $ numbers position_ids d4
     0 1 2 3 4 2 0 1 1 2 0
    $ numbers predicted_by d4
     -1 0 1 2 3 1 -1 6 6 8 -1
    $ numbers labels d1
     0 0 1 1 1 1 0 1 1 1 0
    $ numbers startend_row_indices d4
     6 6 5 5 5 6 10 8 10 10 0
    $ tail -c +129 set/pieces.npy | od -An -v -w32 -td8 | tr -s ' '
     0 0 0 6
     0 1 0 4
    $ flashmask pack --kind pairs pairs.tsv --capacity 11 --output dpo | tail -n 1; ls dpo_*
              startend_row_indices int32 [1, 1, 11, 1] in dpo_startend_row_indices.npy
    dpo_document_ids.npy
    dpo_labels.npy
    dpo_pieces.npy
    dpo_position_ids.npy
    dpo_predicted_by.npy
    dpo_startend_row_indices.npy
    $ flashmask show --vectors dpo_startend_row_indices.npy --causal 1 --width 0 | sed -n 3p
    visible   26 of 121 pairs, density 0.2149

Questions have any number of answers, none too.

    $ printf '4 1 1 1\n3\n2 0 5\n' >questions.txt
    $ flashmask pack questions.txt --kind questions --capacity 10 --output q.safetensors | head -n 3
    input     3 records in 3 pieces, 17 tokens
    packed    2 sequences of 10 tokens, 85.00% used, 100.00% without the emptiest; no packing has fewer
    padded    3 sequences of 10 tokens, 56.67% used, a piece each

Real lengths.

    $ flashmask pack $data/chat_turn_lengths.jsonl --kind documents --capacity 8192 --output out.safetensors | head -n 3
    input     2,312 records in 2,312 pieces, 342,095 tokens
    packed    42 sequences of 8,192 tokens, 99.43% used, 99.99% without the emptiest; no packing has fewer
    padded    2,312 sequences of 8,192 tokens, 1.81% used, a piece each
    $ flashmask pack $data/preference_lengths.tsv --kind pairs --capacity 8192 --output out.safetensors | head -n 3
    input     2,312 records in 2,312 pieces, 477,278 tokens
    packed    59 sequences of 8,192 tokens, 98.75% used, 99.99% without the emptiest; no packing has fewer
    padded    2,312 sequences of 8,192 tokens, 2.52% used, a piece each
    $ flashmask pack $data/code_document_lengths.tsv --kind documents --overlong split --capacity 8192 --output out.safetensors | head -n 3
    input     1,500 records in 1,943 pieces, 7,492,073 tokens
    packed    916 sequences of 8,192 tokens, 99.84% used, 99.93% without the emptiest; no packing has fewer than 915
    padded    1,943 sequences of 8,192 tokens, 47.07% used, a piece each

Nothing but empty documents is in no sequence.

    $ printf '0\n0\n' >empty.txt; flashmask pack empty.txt --kind documents --capacity 8 --output empty.safetensors
    input     2 records in 0 pieces, 0 tokens
    packed    0 sequences of 8 tokens, 0.00% used; no packing has fewer
    padded    0 sequences of 8 tokens, 0.00% used, a piece each
    arrays    pieces int64 [0, 4] in empty.safetensors
              document_ids int32 [0, 8] in empty.safetensors
              position_ids int32 [0, 8] in empty.safetensors
              predicted_by int32 [0, 8] in empty.safetensors
              labels uint8 [0, 8] in empty.safetensors
              startend_row_indices int32 [0, 1, 8, 1] in empty.safetensors

Bad input. No file is written then, and one that is there stays.

    $ rm *.safetensors; bad() { flashmask pack "$@" --output bad.safetensors; }
    $ flashmask pack
    ! flashmask: pack: FILE is needed; see 'flashmask pack --help'
    [2]
    $ bad chats.jsonl
    ! flashmask: pack: --kind documents|pairs|questions is needed; see 'flashmask pack --help'
    [2]
    $ bad chats.jsonl --kind documents
    ! flashmask: pack: --capacity N is needed; see 'flashmask pack --help'
    [2]
    $ flashmask pack chats.jsonl --kind documents --capacity 12
    ! flashmask: pack: --output OUT.safetensors or PREFIX is needed; see 'flashmask pack --help'
    [2]
    $ flashmask pack chats.jsonl --kind documents --capacity 12 --output out.npy
    ! flashmask: --output: 'out.npy' is one .npy file, and there are 6; give a prefix or a .safetensors file
    [2]
    $ bad chats.jsonl pairs.tsv --kind pairs --capacity 12
    ! flashmask: pack: unexpected argument 'pairs.tsv'
    [2]
    $ bad chats.jsonl --kind pair --capacity 12
    ! flashmask: --kind: 'pair' is none of documents|pairs|questions
    [2]
    $ bad chats.jsonl --kind documents --capacity 0
    ! flashmask: --capacity: 0 is outside 1 .. 2147483647
    [2]
    $ bad chats.jsonl --kind documents --capacity 12 --policy best
    ! flashmask: --policy: 'best' is none of best_fit|arrival
    [2]
    $ bad chats.jsonl --kind documents --capacity 8
    ! flashmask: chats.jsonl: record 0 has 9 tokens, a sequence holds 8; --overlong split cuts longer documents
    [2]
    $ bad pairs.tsv --kind pairs --capacity 5
    ! flashmask: pairs.tsv: record 0 has 6 tokens, a sequence holds 5 and parts are not cut
    [2]
    $ bad pairs.tsv --kind pairs --capacity 5 --overlong split
    ! flashmask: --overlong: split cuts documents only; pairs and questions stay whole
    [2]
    $ bad chats.jsonl --kind pairs --capacity 12
    ! flashmask: chats.jsonl: record 0 has 2 numbers; a pair has three: prompt, chosen and rejected
    [2]
    $ printf '[]\n' >none.jsonl; bad none.jsonl --kind questions --capacity 12
    ! flashmask: none.jsonl: record 0 has no numbers; a question has its own length and those of its answers
    [2]
    $ printf '3\n-4\n' >minus.txt; bad minus.txt --kind documents --capacity 12
    ! flashmask: minus.txt:2: -4 is outside 0 .. 2147483647
    [2]
    $ printf '3\n4x\n' >text.txt; bad text.txt --kind documents --capacity 12
    ! flashmask: text.txt:2: '4x' is not a whole number
    [2]
    $ bad missing.txt --kind documents --capacity 12
    ! flashmask: missing.txt: No such file or directory
    [2]
    $ flashmask pack chats.jsonl --kind documents --capacity 12 --output none/out.safetensors
    ! flashmask: none/out.safetensors: cannot be written: No such file or directory
    [2]
    $ echo kept >set.safetensors; flashmask pack chats.jsonl --kind documents --capacity 5 --output set.safetensors; cat set.safetensors
    kept
    ! flashmask: chats.jsonl: record 0 has 9 tokens, a sequence holds 5; --overlong split cuts longer documents
    $ ls
    chats.jsonl
    dpo_document_ids.npy
    dpo_labels.npy
    dpo_pieces.npy
    dpo_position_ids.npy
    dpo_predicted_by.npy
    dpo_startend_row_indices.npy
    empty.txt
    minus.txt
    none.jsonl
    pairs.tsv
    questions.txt
    set
    set.safetensors
    text.txt
