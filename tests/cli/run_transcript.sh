#!/bin/sh
# Runs the commands of a transcript and compares what they print with what stands there.
# usage: run_transcript.sh FLASHMASK DATA TRANSCRIPT [--update]
#
# A transcript is text; its indented lines are
#     $ COMMAND        run by one shell for all of the file, in an empty folder; $data is DATA
#     TEXT             what it printed on standard output,
#     ! TEXT           then on standard error,
#     [STATUS]         then its exit status, if not 0
# Empty lines between lines of output are output too.
set -eu
bin=$(CDPATH='' cd -- "$(dirname -- "$1")" && pwd)
data=$2
transcript=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/empty"
PATH=$bin:$PATH
export PATH

# npy FILE HEADER DATA: a version 1 file; the header gets its length and newline, DATA is printf's.
npy() {
    length=$((${#2} + 1))
    {
        printf '\223NUMPY\001\000'
        printf "\\$(printf %03o $((length % 256)))\\$(printf %03o $((length / 256)))"
        printf '%s\n' "$2"
        printf "$3"
    } >"$1"
}

run() { # COMMAND: with all that it prints
    status=0
    eval "$1" >"$work/out" 2>"$work/err" </dev/null || status=$?
    sed 's/^/    /; s/ *$//' "$work/out"
    sed 's/^/    ! /; s/ *$//' "$work/err"
    [ "$status" = 0 ] || printf '    [%s]\n' "$status"
}

replay() {
    blanks='' # empty lines that are not yet known to be text
    while IFS= read -r line; do
        case $line in
        '')
            blanks="$blanks
"
            continue
            ;;
        '    $ '*)
            printf '%s%s\n' "$blanks" "$line"
            run "${line#????\$ }"
            ;;
        '    '*) ;;
        *) printf '%s%s\n' "$blanks" "$line" ;;
        esac
        blanks=''
    done
}

(cd "$work/empty" && replay) <"$transcript" >"$work/replayed"
if [ "${4:-}" = --update ]; then
    cp "$work/replayed" "$transcript"
else
    diff -u "$transcript" "$work/replayed"
fi
