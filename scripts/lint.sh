#!/usr/bin/env bash
# What a reader would object to before reading: scripts that do not parse, format, names, sizes of functions and files, headers that need others.
#   scripts/lint.sh          what CI runs: clang-format, includes, headers alone, clang-tidy's names and sizes of the product
#   LINT=all scripts/lint.sh         also clang-tidy's other groups (.clang-tidy), which take several times as long
#   LINT=files scripts/lint.sh FILE...       everything, of these .cc files only
# Without FILE, clang-tidy reads the files of a target together (CMake's unity builds), a seventh of the work: two of them cannot define
# the same name, not even in anonymous namespaces.
set -euo pipefail

cd "$(dirname "$0")/.."
scripts/install_dependencies.sh lint
lint=${LINT:-fast}
build=build/lint
jobs=$(nproc)
failed=0

[ $# -gt 0 ] && files=("$@") || mapfile -t files < <(git ls-files '*.h' '*.cc')
clang-format --dry-run -Werror "${files[@]}" || failed=1
while read -r script; do bash -n "$script" || failed=1; done < <(git ls-files '*.sh' .ci/run)

product=$(printf '%s\n' "${files[@]}" | grep -E '^(interfaces|core|app|tools|bench|plugins)/.*\.(h|cc)$' || true)
[ -z "$product" ] || scripts/check_includes.py $product || failed=1

cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DBUILD_TESTING=OFF -DENGINE_WITH_CUDA=OFF \
  -DCMAKE_UNITY_BUILD="$([ $# -eq 0 ] && echo ON || echo OFF)" -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 \
  -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
cmake --build $build --target check_headers -j "$jobs" || failed=1

fast='-*,readability-identifier-naming,readability-function-size,google-build-using-namespace'
[ "$lint" = fast ] && checks=(-checks="$fast") || checks=()
[ $# -eq 0 ] && files=("^$PWD/((core|app|tools|bench|plugins)/.*\\.cc|.*/Unity/.*)\$")
# Not what CMake generates.
run-clang-tidy -quiet -p $build -j "$jobs" -header-filter="^$PWD/(interfaces|core|app|tools|bench|plugins)/" "${checks[@]}" "${files[@]}" >$build/clang_tidy.log 2>&1 || failed=1
grep -E '(error|warning): .*\[' $build/clang_tidy.log | sort -u || true

[ $failed -eq 0 ] && echo "lint: nothing found" || echo "lint: see above, and $PWD/$build/clang_tidy.log"
exit $failed
