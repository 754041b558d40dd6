#!/bin/sh
# Each public header compiles alone, as strict C11 and as C++20 (the first C++ with designated initialisers).
# usage: headers.sh REPOSITORY
set -eu
cd "$1"
for header in include/flashmask/*.h; do
    include="#include <flashmask/$(basename "$header")>"
    for language in 'c -std=c11 -Wextra' 'c++ -std=c++20'; do
        # shellcheck disable=SC2086
        printf '%s\nstatic fm_plan_options o = FM_PLAN_OPTIONS_INIT;\nint main(void) { return (int)o.block_m; }\n' "$include" |
            clang -x $language -pedantic-errors -Wall -Werror -Iinclude -fsyntax-only -
    done
done
