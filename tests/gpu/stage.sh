#!/usr/bin/env bash
# Collects in build/gpu_stage what a machine with a GPU needs and cannot build: programs, plugins, tests, the libraries
# that they need (not those of CUDA, which that machine has), golden files, and losses of runs on the CPU to compare with.
#   tests/gpu/stage.sh [BUILD]      default build/release
# All that tests/gpu/run.sh and bench/gpu.sh need beside this tree: the two go to that machine together. git ignores build/,
# so where ignored files stay behind, name build/gpu_stage. The size is printed.
# The plugin cpu_ops travels without its libraries, which are large: configurations name it, and nothing loads it there.
# Its results travel.
set -euo pipefail

cd "$(dirname "$0")/../.."
build=$(cd "${1:-build/release}" && pwd)
stage=$PWD/build/gpu_stage
[ -f "$build/lib/engine/plugins/libengine_cuda_ops.so" ] || {
  echo "stage: $build has no plugin cuda_ops: build where the CUDA toolkit is found" >&2
  exit 79
}
plugins=(text tokens mnist cifar10 synthetic gpt mlp cnn resnet net cpu_ops cuda_ops nccl null sequential_sched fifo_sched priority_sched sgd adamw clip_norm clip_value cast_bf16)
tests=(ops_conformance golden_conformance image_golden_conformance)
bench=(cuda_op_times)
cmake --build "$build" --target engine engine_conform cuda_attention_device "${plugins[@]/#/engine_}" "${tests[@]}" "${bench[@]}" >/dev/null

rm -rf "$stage"
mkdir -p "$stage"/{bin,lib,plugins,golden,reference}
for name in "${plugins[@]}"; do cp "$build/lib/engine/plugins/libengine_$name.so" "$stage/plugins/"; done
cp "$build"/bin/{engine,engine-conform,cuda_attention_device} "${tests[@]/#/$build/tests/}" "${bench[@]/#/$build/bench/}" "$stage/bin/"
cp tests/golden/*.safetensors "$stage/golden/"
strip --strip-unneeded "$stage"/bin/* "$stage"/plugins/*

# Their libraries, but for those of the system, of the compiler and of CUDA.
skip='^(linux-vdso|ld-linux|lib(c|m|mvec|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+|cuda|cudart|cublas|cublasLt|cudnn[a-z_]*'
skip+='|nccl|nvrtc[a-z-]*|nvidia-ml|dnnl|gomp))\.so'
for file in "$stage"/bin/* "$stage"/plugins/*; do ldd "$file" 2>/dev/null || true; done |
  awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u | while read -r name path; do
    [[ $name =~ $skip ]] || cp -L "$path" "$stage/lib/$name"
  done

# What the same runs give on the CPU.
. tests/gpu/runs.sh
gpu_references "$build/bin/engine" "$stage/reference" >/dev/null
# At last, because it says that the stage is complete.
git describe --always --dirty=" with changes" --exclude='*' >"$stage/commit"
du -sm "$stage" | awk '{print "staged " $1 " MiB in build/gpu_stage"}'
objdump -T "$stage"/bin/* "$stage"/lib/* "$stage"/plugins/* 2>/dev/null | grep -oE 'GLIBC(XX)?_[0-9.]+' | sort -uV |
  awk -F_ '{version[$1] = $2} END {for (name in version) print "needs at most " name " " version[name]}'
