#!/bin/sh
# usage: clang_format.sh REPOSITORY
set -eu
cd "$1"
find include src cli tests bench examples \( -name '*.[ch]' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | xargs clang-format --dry-run -Werror
