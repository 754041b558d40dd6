#!/bin/sh
# Everything that a GPU must say of this repository: see `tools/gpu.sh --help`. Needs nvcc, cmake, ninja, a C compiler and cmocka, or
# test programs that were built elsewhere; and for the benchmark python3 with torch.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
here=$PWD

usage() {
    cat <<'END'
usage: tools/gpu.sh [OPTIONS] [PARTS]

Builds the library and the GPU tests, runs the parts and prints a table last. JSON lines are in ${OUT:-build/gpu}/results.jsonl and
bench.jsonl, all logs in gpu.log beside them. Exits with 1 if anything failed.

parts, all by default:
  tests      the programs of tests/cuda, several at a time, and conformance with the kernels for GPUs with little shared memory
  sanitize   compute-sanitizer's memcheck, racecheck and synccheck on a few small conformance cases
  bench      bench/gpu_bench.py

options:
  --arch LIST           CUDA architectures, such as 90-real (default: the build's own, '80;90-real')
  --head-dims LIST      buckets of head dims to build, such as 128 (default: all)
  --only REGEX          of the tests, those whose name matches
  --draws N             cases under each sanitizer tool (default 12)
  --timeout SECONDS     of one program (default 400)
  --jobs N              compilations at a time (default: all cores)
  --bench-args 'ARGS'   of the benchmark (default '--lengths 8192 32768 --quick')
  --pack FILE.tar.xz    build, put programs and libraries into FILE and stop: for machines that lack cmocka
  --binaries DIR|FILE   build nothing, take them from there
END
}

fail() {
    echo "gpu.sh: $*" >&2
    exit 2
}

parts=
arch=
head_dims=
only=.
draws=12
limit=400
jobs=$(nproc)
bench_args='--lengths 8192 32768 --quick'
pack=
binaries=
while [ $# -gt 0 ]; do
    case $1 in
    tests | sanitize | bench) parts="$parts $1" ;;
    -h | --help) usage && exit 0 ;;
    --arch | --head-dims | --only | --draws | --timeout | --jobs | --bench-args | --pack | --binaries)
        [ $# -ge 2 ] || fail "$1 needs a value"
        case $1 in
        --arch) arch=$2 ;;
        --head-dims) head_dims=$2 ;;
        --only) only=$2 ;;
        --draws) draws=$2 ;;
        --timeout) limit=$2 ;;
        --jobs) jobs=$2 ;;
        --bench-args) bench_args=$2 ;;
        --pack) pack=$2 ;;
        --binaries) binaries=$2 ;;
        esac
        shift
        ;;
    *) usage >&2 && fail "unknown argument '$1'" ;;
    esac
    shift
done
parts=${parts:-tests sanitize bench}

from_here() { # PATH: absolute, or nothing for nothing
    case $1 in '' | /*) echo "$1" ;; *) echo "$here/$1" ;; esac
}
pack=$(from_here "$pack")
binaries=$(from_here "$binaries")

out=$(from_here "${OUT:-}")
out=${out:-$root/build/gpu}
cd "$root"
mkdir -p "$out"
out=$(CDPATH='' cd -- "$out" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
: >"$out/results.jsonl"
: >"$out/gpu.log"
: >"$scratch/table"

# ---- results ----

now() { date +%s.%N; }

text() { # JSON string of stdin's first line
    head -n 1 | sed 's/[\\"]/\\&/g; s/^/"/; s/$/"/'
}

record() { # PART NAME STATUS SECONDS: one line of results and of the table
    printf '{"part": "%s", "name": "%s", "status": "%s", "seconds": %s}\n' "$1" "$2" "$3" "$4" >>"$out/results.jsonl"
    printf '%-9s %-36s %-8s %8s s\n' "$1" "$2" "$3" "$4" >>"$scratch/table"
}

status_of() { # CODE LOG
    case $1 in
    0) echo passed ;;
    77) echo skipped ;;
    124 | 137) echo timeout ;;
    *) if grep -q 'Device not supported' "$2"; then echo skipped; else echo failed; fi ;;
    esac
}

# Runs a command under the time limit; its output goes to a log of its own, its result to a line that gather reads.
attempt() { # PART NAME COMMAND...
    part=$1 name=$2
    shift 2
    began=$(now)
    code=0
    timeout "$limit" "$@" >"$scratch/$part.$name.log" 2>&1 || code=$?
    seconds=$(echo "$began $(now)" | awk '{ printf "%.1f", $2 - $1 }')
    echo "$part $name $(status_of "$code" "$scratch/$part.$name.log") $seconds" >"$scratch/$part.$name.result"
}

gather() { # PART: records what attempt left, in order of names, and appends the logs
    for result in "$scratch/$1".*.result; do
        [ -f "$result" ] || continue
        read -r part name status seconds <"$result"
        record "$part" "$name" "$status" "$seconds"
        { echo "==== $part $name: $status, $seconds s" && cat "$scratch/$part.$name.log"; } >>"$out/gpu.log"
        [ "$status" = passed ] || [ "$status" = skipped ] || grep -E 'ERROR|error:|FAILED|=========' "$scratch/$part.$name.log" |
            head -n 6 | cut -c 1-400 | sed 's/^/    /' >>"$scratch/table"
    done
}

machine() {
    commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
    gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo none)
    toolkit=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    printf '{"part": "machine", "commit": %s, "gpu": %s, "toolkit": %s}\n' "$(echo "$commit" | text)" "$(echo "$gpu" | text)" \
        "$(echo "$toolkit" | text)" >>"$out/results.jsonl"
}

# ---- building ----

build() {
    with_tests=ON
    pkg-config --exists cmocka 2>/dev/null || with_tests=OFF
    echo "gpu.sh: building build/cuda"
    began=$(now)
    code=0
    {
        cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DFM_CUDA=ON -DFM_CLI=OFF -DFM_TESTS=$with_tests \
            ${arch:+"-DFM_CUDA_ARCHITECTURES=$arch"} ${head_dims:+"-DFM_HEAD_DIMS=$head_dims"} &&
            cmake --build build/cuda -j "$jobs"
    } >"$scratch/build.log" 2>&1 || code=$?
    cat "$scratch/build.log" >>"$out/gpu.log"
    record build build/cuda "$(status_of $code "$scratch/build.log")" "$(echo "$began $(now)" | awk '{ printf "%.1f", $2 - $1 }')"
    if [ $code != 0 ]; then
        grep -vE '^\[[0-9]+/[0-9]+\] ' "$scratch/build.log" | tail -n 40 >&2
        fail "the build failed; the whole log is $out/gpu.log"
    fi
    library=$root/build/cuda/libflashmask.so
    programs=$root/build/cuda/tests/cuda
}

pack() { # FILE
    [ -d "$programs" ] || fail "no test programs were built: cmocka is missing"
    mkdir -p "$scratch/pack" "$(dirname "$1")"
    cp "$programs"/test_* "$programs"/time_* "$scratch/pack/"
    cp -P "${library%.so}"*.so* "$scratch/pack/"
    ldd "$programs/test_cuda_errors" | sed -n 's/.*cmocka.* => \([^ ]*\) .*/\1/p' | xargs -I '{}' cp -L '{}' "$scratch/pack/"
    find "$scratch/pack" -type f -exec strip '{}' +
    XZ_OPT='-9 -T1' tar -C "$scratch/pack" -cJf "$1" . # programs share their kernels, which xz sees
    echo "gpu.sh: $1 holds $(find "$scratch/pack" -type f | wc -l) files, $(du -h "$1" | cut -f 1)"
}

take_binaries() { # DIR|FILE
    if [ -f "$1" ]; then
        mkdir "$scratch/binaries"
        tar -C "$scratch/binaries" -xJf "$1" 2>/dev/null || python3 -m tarfile -e "$1" "$scratch/binaries"
        programs=$scratch/binaries
    elif [ -d "$1" ]; then
        programs=$(CDPATH='' cd -- "$1" && pwd)
    else
        fail "$1 is neither a folder nor a file"
    fi
    library=$programs/libflashmask.so
    LD_LIBRARY_PATH=$programs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
}

# ---- parts ----

has_programs() { # PART
    [ -x "$programs/test_cuda_conformance" ] && return 0
    record "$1" 'no test programs (cmocka is missing)' skipped 0
    return 1
}

matches() { echo "$1" | grep -qE -e "$only"; }

# The oracle of the tests runs on the CPU: programs side by side, but for test_cuda_graphs, which watches the GPU's free memory.
run_tests() {
    has_programs tests || return 0
    OMP_WAIT_POLICY=passive
    export OMP_WAIT_POLICY
    for program in "$programs"/test_*; do
        name=$(basename "$program")
        if [ "$name" != test_cuda_graphs ] && matches "$name"; then attempt tests "$name" "$program" & fi
    done
    if matches test_cuda_conformance_compact; then
        attempt tests test_cuda_conformance_compact env FLASHMASK_CUDA_COMPACT=1 "$programs/test_cuda_conformance" draws 0 150 &
    fi
    wait
    if matches test_cuda_graphs; then attempt tests test_cuda_graphs "$programs/test_cuda_graphs"; fi
    gather tests
}

run_sanitizers() {
    has_programs sanitize || return 0
    if ! command -v compute-sanitizer >/dev/null; then
        record sanitize 'compute-sanitizer is missing' skipped 0
        return 0
    fi
    for tool in memcheck racecheck synccheck; do
        attempt sanitize "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$programs/test_cuda_conformance" small 0 "$draws" &
        attempt sanitize "$tool.compact" env FLASHMASK_CUDA_COMPACT=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$programs/test_cuda_conformance" small 1000 "$draws" &
    done
    wait
    gather sanitize
}

run_bench() {
    if ! python3 -c 'import torch' 2>/dev/null; then
        record bench 'python3 with torch is missing' skipped 0
        return 0
    fi
    # shellcheck disable=SC2086 # arguments are split on purpose
    attempt bench gpu_bench python3 bench/gpu_bench.py --library "$library" --out "$out/bench.jsonl" \
        --commit "$commit" $bench_args
    gather bench
    cat "$scratch/bench.gpu_bench.log"
}

PATH=$PATH:/usr/local/cuda/bin
export PATH
machine
if [ -n "$binaries" ]; then
    take_binaries "$binaries"
else
    build
fi
if [ -n "$pack" ]; then
    pack "$pack"
    exit 0
fi
for part in $parts; do
    case $part in
    tests) run_tests ;;
    sanitize) run_sanitizers ;;
    bench) run_bench ;;
    esac
done

echo
cat "$scratch/table"
if grep -qE '"status": "(failed|timeout)"' "$out/results.jsonl"; then
    exit 1
fi
