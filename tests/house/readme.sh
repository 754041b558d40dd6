#!/bin/sh
# The README's program is examples/first.c, and the output it claims is what that prints.
# usage: readme.sh REPOSITORY PROGRAM
set -eu
cd "$1"
program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

block() { # LANGUAGE: the first fenced block of it after the heading "A first program"
    awk -v fence="\`\`\`$1" '/^## A first program/ { in_section = 1 }
        in_section && /^```$/ && printing { exit }
        printing { print }
        in_section && $0 == fence { printing = 1 }' README.md
}

block c >"$work/program"
block text >"$work/output"
diff -u examples/first.c "$work/program"
"$program" | diff -u - "$work/output"
