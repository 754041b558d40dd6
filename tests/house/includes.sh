#!/bin/sh
# Which room may include which: core <- mask <- plan <- attention/problem.h <- cpu | cuda <- attention <- bench, examples <- cli.
# In cuda: ptx <- tile <- sm80 | sm90.
# usage: includes.sh REPOSITORY
set -eu
cd "$1"
status=0
seen=0

check() { # FOLDER ALLOWED...: every #include "..." below FOLDER names a file beside it or starts with one of ALLOWED
    folder=$1
    shift
    [ -d "$folder" ] || return 0
    list=$(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' --include='*.[ch]' --include='*.inc' --include='*.cu' --include='*.cuh' "$folder" || true)
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
check src/cuda/ptx cuda/ptx/
check src/cuda/tile plan/device_plan.h cuda/launch.h cuda/variant.cuh cuda/ptx/ cuda/tile/
check src/cuda/sm80 plan/device_plan.h cuda/launch.h cuda/launch_kernel.cuh cuda/variant.cuh cuda/ptx/ cuda/tile/ cuda/sm80/
check src/cuda/sm90 core/integers.h plan/device_plan.h cuda/launch.h cuda/launch_kernel.cuh cuda/variant.cuh cuda/variants.h cuda/ptx/ cuda/tile/ cuda/sm90/
check src/cuda core/ mask/ plan/ attention/problem.h cuda/
check src/attention core/ mask/ plan/ attention/ cpu/
check cli bench/
for room in bench examples; do # only <flashmask/...> and what stands beside
    check "$room"
done

for room in src/*/; do
    case $room in src/core/ | src/mask/ | src/plan/ | src/cpu/ | src/cuda/ | src/attention/) ;; *)
        echo "$room: no rule for this room"
        status=1
        ;;
    esac
done
echo "$seen includes checked"
[ "$seen" -gt 0 ] && [ "$status" = 0 ]
