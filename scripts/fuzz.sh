#!/usr/bin/env bash
# Feeds damaged bytes to the parsers of files, flags and messages (tests/fuzz) for a short time, under the address and
# undefined-behaviour sanitizers.
#   scripts/fuzz.sh [SECONDS]          of each program, default 20; what they find is written to build/fuzz
set -euo pipefail

cd "$(dirname "$0")/.."
scripts/install_dependencies.sh tests
sanitizers="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all"
cmake -S . -B build/fuzz -G Ninja -DENGINE_FUZZ=ON -DBUILD_TESTING=ON -DENGINE_WITH_CUDA=OFF -DCMAKE_CXX_COMPILER=clang++ \
  -DCMAKE_BUILD_TYPE=None -DCMAKE_UNITY_BUILD=ON -DCMAKE_CXX_FLAGS="-O1 -g1 $sanitizers" >/dev/null
targets=(zmq_ps_wire shm_peer launch_message launch_endpoint parsers)
cmake --build build/fuzz --target "${targets[@]/%/_fuzz}"
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
cp -r tests/fuzz/corpus/. "$corpus"
mkdir "$corpus/parsers" "$corpus/shm_peer"
# The first byte is the target (tests/fuzz/parsers_fuzz.cc): a configuration, a checkpoint, the header of one.
for file in configs/*.pbtxt; do printf '\0' | cat - "$file" >"$corpus/parsers/${file##*/}"; done
printf '\2' | cat - tests/golden/mlp.safetensors >"$corpus/parsers/checkpoint"
header_bytes=$(($(od -An -N8 -tu8 tests/golden/mlp.safetensors)))
printf '\3' | cat - <(head -c $((8 + header_bytes)) tests/golden/mlp.safetensors | tail -c "$header_bytes") >"$corpus/parsers/header"
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -o pipefail -c 'build/fuzz/fuzz/{}_fuzz -max_total_time='"${1:-20}"' \
  -artifact_prefix=build/fuzz/ -print_final_stats=1 -rss_limit_mb=4096 -max_len=65536 '"$corpus"'/{} 2>&1 | tail -n 12'
