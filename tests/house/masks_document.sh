#!/bin/sh
# docs/masks.md shows every builder, and its lines of C compile.
# usage: masks_document.sh REPOSITORY
set -eu
cd "$1"
program=$(mktemp --suffix .c)
trap 'rm -f "$program"' EXIT

status=0
for name in $(sed -n 's/^FM_API fm_status \(fm_mask_[a-z_]*\)(.*/\1/p' include/flashmask/masks.h); do
    grep -q "^$name(" docs/masks.md || { echo "docs/masks.md does not show $name"; status=1; }
done
{
    printf '#include <flashmask/masks.h>\nvoid all(void);\nvoid all(void) {\nfm_mask *mask;\n'
    awk '/^```c$/ { print "{"; printing = 1; next } /^```$/ && printing { print "}"; printing = 0 } printing { print }' docs/masks.md
    printf '}\n'
} >"$program"
clang -std=c11 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$program" || status=1
exit $status
