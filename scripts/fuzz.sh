#!/usr/bin/env bash
# Feeds damaged input to each parser of tests/fuzz for a short time, under the address and undefined-behaviour sanitizers.
#   scripts/fuzz.sh [SECONDS]          each; default 20; what it finds is written to build/fuzz
set -euo pipefail

cd "$(dirname "$0")/.."
scripts/install_dependencies.sh tests
cmake -S . -B build/fuzz -G Ninja -DENGINE_FUZZ=ON -DBUILD_TESTING=ON -DCMAKE_CXX_COMPILER=clang++ \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
targets=(zmq_ps_wire launch_message launch_endpoint)
cmake --build build/fuzz --target "${targets[@]/%/_fuzz}"
for target in "${targets[@]}"; do
  corpus=$(mktemp -d)
  trap 'rm -rf "$corpus"' EXIT
  build/fuzz/fuzz/"$target"_fuzz -max_total_time="${1:-20}" -artifact_prefix=build/fuzz/ -print_final_stats=1 "$corpus" \
    tests/fuzz/corpus/"$target" 2>&1 | tail -n 12
  rm -rf "$corpus"
done
