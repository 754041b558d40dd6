# Help and version

    $ flashmask --help
    usage: flashmask COMMAND [OPTIONS]

    Attention with column-wise masks.

      show   a mask's statistics, tile classes and picture
      check  attention with a mask, forward and backward, against the f64 reference
      run    attention on arrays from files, with any mask; results to files
      bench  times masks of the published benchmark and real packs, and checks each
      pack   document lengths into sequences, and the arrays beside their tokens
      demo   packs real document lengths, runs masked attention on them and checks it
      masks  the masks that --mask can name, with their keys

    'flashmask COMMAND --help' lists a command's options. For example:

      flashmask show --mask causal_document:lengths=1024+512+1536+1024
      flashmask check --mask sliding_window:window=512 --seq 2048 --dtype bf16

    Exit status: 0 done or agrees, 1 differs, 2 bad usage or input.

    $ flashmask masks --help
    usage: flashmask masks

    The masks that --mask can name, with their keys: [] may be left out, (a|b) is one of the two.
    $ flashmask --version
    flashmask 0.1.0
    $ flashmask check --help
    usage: flashmask check [OPTIONS]

    Attention with a mask, forward and backward, against the f64 reference.

      --mask SPEC                  NAME:key=value,...; 'flashmask masks' lists the names
      --vectors FILE.npy           startend_row_indices, int32 [Sk, C] or [B, Hm, Sk, C], instead of --mask
      --causal 0|1                 what --vectors mean; needed with them
      --seq N                      keys (default: what the mask's lengths sum to, else 1024)
      --rows N                     query rows (default: as many as keys)
      --heads N                    query heads (default: 1)
      --heads-kv N                 key heads (default: as many as query heads)
      --head-dim N                 of query and key (default: 64)
      --head-dim-v N               of value (default: that of query and key)
      --dtype f32|f16|bf16         of the tensors (default: f32)
      --seed N                     of everything that is drawn (default: 0)
      --threads N                  of the CPU backend (default: OpenMP's choice)
      --json                       one JSON object instead of text
      --help                       this text

    $ flashmask demo -h | head -n 1
    usage: flashmask demo [OPTIONS]
    $ flashmask show --help | grep -c -- --
    13
