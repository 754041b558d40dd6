#!/bin/sh
# Installs a build into a new prefix, moves the prefix, then builds and runs a stranger's program against it: found by
# find_package, found by pkg-config. KIND static configures and builds a static library first.
# usage: install.sh REPOSITORY BUILD shared|static
set -eu
repository=$1
build=$2
kind=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "$kind" = static ]; then
    cmake -S "$repository" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DFM_CUDA=OFF -DFM_CLI=OFF -DFM_TESTS=OFF
    cmake --build "$work/build"
    build=$work/build
fi
cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/prefix"

echo "---- find_package"
cmake -S "$repository/tests/install/consumer" -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix"
cmake --build "$work/consumer"
"$work/consumer/consumer"

echo "---- pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name flashmask.pc)")
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
export PKG_CONFIG_PATH LD_LIBRARY_PATH
link=--libs
[ "$kind" = shared ] || link='--static --libs'
# The output of pkg-config is a list of words.
# shellcheck disable=SC2046,SC2086
cc -o "$work/by_pkg_config" "$repository/tests/install/consumer/main.c" $(pkg-config --cflags $link flashmask)
"$work/by_pkg_config"
pkg-config --modversion flashmask

if [ -x "$work/prefix/bin/flashmask" ]; then
    echo "---- command line"
    unset LD_LIBRARY_PATH
    "$work/prefix/bin/flashmask" --version
fi
