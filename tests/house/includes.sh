#!/bin/sh
# Which room may include which: core <- mask <- plan <- attention/problem.h <- cpu <- attention <- bench, examples <- cli.
# usage: includes.sh REPOSITORY
set -eu
cd "$1"
status=0
seen=0

check() { # FOLDER ALLOWED...: every #include "..." below FOLDER names a file beside it or starts with one of ALLOWED
    folder=$1
    shift
    [ -d "$folder" ] || return 0
    list=$(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' --include='*.[ch]' --include='*.inc' "$folder" || true)
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        seen=$((seen + 1))
        header=${line#*\"}
        header=${header%%\"*}
        case $header in */*) ;; *) [ ! -f "$(dirname "${line%%:*}")/$header" ] || continue ;; esac
        for allowed; do
            case $header in "$allowed"*) continue 2 ;; esac
        done
        echo "$line"
        status=1
    done <<END
$list
END
}

check include # nothing but <...>
check src/core core/
check src/mask core/ mask/
check src/plan core/ mask/ plan/
check src/cpu core/ mask/ plan/ attention/problem.h cpu/
check src/attention core/ mask/ plan/ attention/ cpu/
check cli bench/
for room in bench examples; do # only <flashmask/...> and what stands beside
    check "$room"
done

for room in src/*/; do
    case $room in src/core/ | src/mask/ | src/plan/ | src/cpu/ | src/attention/) ;; *)
        echo "$room: no rule for this room"
        status=1
        ;;
    esac
done
echo "$seen includes checked"
[ "$seen" -gt 0 ] && [ "$status" = 0 ]
