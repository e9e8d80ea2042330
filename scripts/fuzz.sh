#!/usr/bin/env bash
# Feeds damaged messages to the decoder of zmq_ps for a short time, under the address and undefined-behaviour sanitizers.
#   scripts/fuzz.sh [SECONDS]          default 20; what it finds is written to build/fuzz
set -euo pipefail

cd "$(dirname "$0")/.."
scripts/install_dependencies.sh tests
cmake -S . -B build/fuzz -G Ninja -DENGINE_FUZZ=ON -DBUILD_TESTING=ON -DCMAKE_CXX_COMPILER=clang++ \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
cmake --build build/fuzz --target zmq_ps_wire_fuzz
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
build/fuzz/fuzz/zmq_ps_wire_fuzz -max_total_time="${1:-20}" -artifact_prefix=build/fuzz/ -print_final_stats=1 "$corpus" \
  tests/fuzz/corpus/zmq_ps_wire 2>&1 | tail -n 12
