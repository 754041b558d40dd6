#!/bin/sh
# The shared library exports exactly what the headers declare with FM_API, and needs nothing but libc, libm and OpenMP.
# usage: exported_names.sh REPOSITORY LIBRARY
set -eu
cd "$1"
library=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -n 's/^FM_API [^(]*[ *]\(fm_[a-z0-9_]*\)(.*/\1/p' include/flashmask/*.h | sort >"$work/declared"
nm -D --defined-only "$library" | sed 's/^[^ ]* [A-Za-z] //' | sort >"$work/exported"

status=0
[ "$(grep -c '' "$work/declared")" = "$(grep -h '^FM_API ' include/flashmask/*.h | grep -c '')" ] || {
    echo "an FM_API line has no function name on it"
    status=1
}
diff -u "$work/declared" "$work/exported" || status=1

objdump -p "$library" | sed -n 's/^ *NEEDED *//p' >"$work/needed"
if grep -vE '^(libc|libm|libgomp|libomp|libgcc_s|libpthread|ld-linux[^.]*)\.so' "$work/needed"; then
    echo "the library needs more than libc, libm and OpenMP"
    status=1
fi
echo "$(grep -c '' "$work/exported") names exported"
exit $status
