#!/usr/bin/env bash
# All checks that need a GPU, in less than eight minutes.
#   tests/gpu/run.sh             on a machine that builds and has a GPU
#   tests/gpu/run.sh NAME...     only the checks whose names begin so
#   tests/gpu/run.sh --list      their names and limits in seconds; needs no GPU
# A machine that only has the GPU needs this tree and what tests/gpu/stage.sh made of it elsewhere, build/gpu_stage; no git,
# no compiler; python3 without packages. CUDA, cuDNN and NCCL may be those of PyTorch's packages.
# Prints a line per check. Results: RESULTS/gpu_checks.jsonl and .tar.gz (steps.sh has the variables). Fails if a check failed
# or did not run, or if none was ok.
set -uo pipefail

cd "$(dirname "$0")/../.." || exit
. tests/gpu/runs.sh
. tests/gpu/checks.sh
chosen=("$@")
if [ "${1:-}" = --list ]; then
  check() { echo "$1 $2"; }
  stage=none all_checks
  exit
fi
. tests/gpu/environment.sh
. tests/gpu/steps.sh

check() {  # name limit_s command...
  local prefix
  for prefix in "${chosen[@]-}"; do
    [[ $1 != "$prefix"* ]] || { step "$@"; return; }
  done
}
summarize() {
  echo "${steps_with[ok]} ok, ${steps_with[failed]} failed, ${steps_with[skipped]} skipped," \
    "${steps_with["not run"]} not run; logs in $results/$results_name.tar.gz"
  [ $((steps_with[failed] + steps_with["not run"])) -eq 0 ] && [ "${steps_with[ok]}" -gt 0 ]
}

open_results gpu_checks
all_checks
