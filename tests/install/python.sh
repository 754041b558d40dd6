#!/bin/sh
# A newcomer's way to the Python package: a new environment, `pip install .` for CPUs within two minutes, the README's five lines,
# and the tests of the package that need NumPy alone. Then each torch that is named goes into the same environment, one after the
# other, and all tests run with it: what was built before any torch was there stays as it is.
# https://github.com/Dao-AILab/flash-attention/issues/1038: builds of hours.
# https://github.com/Dao-AILab/flash-attention/issues/1832: undefined symbols after an upgrade of torch.
# usage: python.sh REPOSITORY [REQUIREMENT...], such as 'torch==2.4.*' torch, which are gigabytes each
set -eu
cd "$1"
shift
limit=120 # seconds
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset FLASHMASK_LIBRARY PYTHONPATH
python=$work/venv/bin/python

block() { # LANGUAGE: the first fenced block of it after the heading "From Python"
    awk -v fence="\`\`\`$1" '/^## From Python/ { in_section = 1 }
        in_section && /^```$/ && printing { exit }
        printing { print }
        in_section && $0 == fence { printing = 1 }' README.md
}

first_lines() {
    began=$(date +%s%N)
    (cd "$work" && "$python" first.py >printed)
    echo "five lines to an output: $((($(date +%s%N) - began) / 1000000)) ms"
    diff -u "$work/output" "$work/printed"
}

tests() { # those of the installed package
    mkdir -p build/install
    "$python" -m pytest -q -p no:cacheprovider --junitxml=build/install/results.xml
}

library() { # what was built: its name, bytes and time
    find "$work/venv" -name 'libflashmask*' -exec sha256sum {} + -exec stat -c %y {} +
}

block python >"$work/first.py"
block text >"$work/output"
[ "$(wc -l <"$work/first.py")" = 5 ]

python3 -m venv "$work/venv"
began=$(date +%s)
"$python" -m pip install -q --config-settings=cmake.define.FM_CUDA=OFF .
took=$(($(date +%s) - began))
echo "pip install .: $took s"
[ "$took" -lt "$limit" ] || { echo "the limit is $limit s" >&2; exit 1; }
if "$python" -c 'import torch' 2>"$work/no_torch"; then echo "torch is here already" >&2 && exit 1; fi
first_lines
"$python" -m pip install -q pytest
tests

library >"$work/built"
for requirement; do
    "$python" -m pip install -q --no-cache-dir --upgrade "$requirement"
    "$python" -c 'import torch; print("torch", torch.__version__)'
    first_lines
    tests
    library | diff -u "$work/built" -
done
