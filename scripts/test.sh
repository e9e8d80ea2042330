#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests.
#   scripts/test.sh                 the fast tests: all without the labels slow, emulated, exhaustive and cluster
#   scripts/test.sh -L emulated     the CUDA plugins without a GPU, in a minute or two; needs the CUDA toolkit
#   scripts/test.sh -L package      the Debian packages in a Debian of their own, which apt must reach; as root
#   scripts/test.sh -L slow         those that take minutes; any other flag of ctest works too
#   scripts/test.sh -L cluster      real launchers over two hosts in namespaces, as root; Slurm is installed with apt
#   PRESET=asan scripts/test.sh     another preset of CMakePresets.json: ci, dev, asan, tsan
# Tests on real data (MNIST images, Shakespeare) read the folder in ENGINE_TEST_DATA and are reported as skipped
# without it.
set -euo pipefail

cd "$(dirname "$0")/.."
preset=${PRESET:-release}
scripts/install_dependencies.sh tests
cmake --preset "$preset" -DBUILD_TESTING=ON -DENGINE_WERROR=ON >/dev/null
cmake --build --preset "$preset"
if [ -z "${ENGINE_TEST_DATA:-}" ] && [ -d ../shared/data ]; then
  ENGINE_TEST_DATA=$(realpath ../shared/data)
  export ENGINE_TEST_DATA
fi
jobs=$((2 * $(nproc) + 1))  # some wait for deadlines
if [ $# -eq 0 ]; then
  set -- -LE 'slow|emulated|exhaustive|cluster'
  jobs=$((4 * $(nproc) + 1))  # many do
fi
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j"$jobs" "$@"
