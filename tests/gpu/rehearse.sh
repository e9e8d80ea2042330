#!/usr/bin/env bash
# Runs run.sh on emulated CUDA: shows that the checks work, nothing of a GPU.
#   tests/gpu/rehearse.sh BUILD FOLDER [words of run.sh]    FOLDER becomes the stage and has the results
set -euo pipefail

build=$(realpath "$1") stage=$(realpath -m "$2")
shift 2
cd "$(dirname "$0")/../.."
rm -rf "$stage"
mkdir -p "$stage"/{bin,plugins,path,reference}
ln -s "$build"/lib/engine/plugins/* "$stage/plugins/"
ln -sf "$build"/tests/emulated_cuda/plugins/*.so "$stage/plugins/"
ln -s "$build/tests/emulated_cuda/lib" "$stage/lib"
ln -s "$PWD/tests/golden" "$stage/golden"
ln -s "$build"/bin/{engine,engine-conform} "$build"/tests/{ops,golden,image_golden}_conformance "$stage/bin/"
ln -s "$build/tests/cuda_attention" "$stage/bin/cuda_attention_device"
printf '#!/bin/sh\necho "no GPU: CUDA is emulated"\n' >"$stage/path/nvidia-smi"
chmod +x "$stage/path/nvidia-smi"
echo "emulated" >"$stage/commit"
export RUN_WORDS="--set train.steps=4 --set train.evaluate_samples=8"  # nothing is fast here
. tests/gpu/runs.sh
gpu_references "$build/bin/engine" "$stage/reference" >/dev/null
STAGE=$stage RESULTS=$stage/results PATH=$stage/path:$PATH tests/gpu/run.sh "$@"
