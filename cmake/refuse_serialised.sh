#!/bin/sh
# usage: refuse_serialised.sh COMPILER...
# Runs a compiler of kernels for sm_90a and fails where ptxas tells that it serialised wgmma: only a note to it, but such a kernel waits
# for every product (PTX ISA, "wgmma.mma_async": C7510 and its like).
log=$(mktemp)
"$@" >"$log" 2>&1
status=$?
cat "$log" >&2
if grep -q 'wgmma.mma_async instructions are serialized' "$log"; then
    status=1
fi
rm -f "$log"
exit $status
