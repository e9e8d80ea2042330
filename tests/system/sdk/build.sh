#!/usr/bin/env bash
# build.sh BUILD WORK COMPILER LAUNCHER [FLAGS]: installs the SDK of the engine built in BUILD below WORK and builds
# the example plugins against it, and what `engine plugins new` writes to WORK/new. The plugins are then in
# WORK/plugins. Exit code 77: there is no COMPILER.
set -euo pipefail
build=$1 work=$2 compiler=$3 launcher=$4 flags=${5:-}
project=$(cd "$(dirname "$0")" && pwd)/project

if ! command -v "$compiler" >/dev/null; then
  echo "skipped: $compiler is not installed"
  exit 77
fi
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --component sdk --prefix "$work/prefix" >"$work/install.log"
mkdir "$work/new"
cd "$work/new"
for kind in communicator scheduler optimizer ops hook dataset model; do
  "$build/bin/engine" plugins new "new_$kind" --kind "$kind"
done
cmake -S "$project" -B "$work/build" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_FLAGS="-O1 -Wall -Wextra -Werror $flags" \
  -DCMAKE_PREFIX_PATH="$work/prefix" -DNEW="$work/new" -DENGINE_PLUGIN_OUTPUT_DIR="$work/plugins"
cmake --build "$work/build" -j2
