#!/usr/bin/env bash
# From a fresh Debian 12 machine to a trained model: installs what is missing, builds what the job needs, and trains a
# byte-level GPT with two processes on the text of this repository, or on the file or folder given.
#   scripts/quickstart.sh [TEXT]
set -euo pipefail

text=$(realpath "${1:-$(dirname "$0")/..}")
cd "$(dirname "$0")/.."
scripts/install_dependencies.sh
cmake --preset release -DBUILD_TESTING=OFF >/dev/null
# What this job needs; the other plugins are built when they are asked for.
cmake --build --preset release --parallel "$(nproc)" --target engine_quickstart
engine=build/release/bin/engine
command="$engine run -n 2 --force --set data.text.path=$text"
echo "+ $command"
$engine run -n 2 --force --set "data.text.path=$text"
cat <<TEXT

Next:
  cmake --build --preset release     # the other plugins
  $engine sample runs/gpt_text.safetensors --prompt "The "
  $engine eval runs/gpt_text.safetensors
  $engine run -n 2 --force --plugins tcp,fifo_sched --set adamw.weight_decay=0.1
  $engine plugins
TEXT
