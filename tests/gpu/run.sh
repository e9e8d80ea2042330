#!/usr/bin/env bash
# All checks that need a GPU, in less than eight minutes. One command:
#   tests/gpu/run.sh                on a machine that builds and has a GPU
#   tests/gpu/stage.sh              on one that only builds; then, on one that only has the GPU, with this tree and
#   tests/gpu/run.sh                build/gpu_stage copied there
#   tests/gpu/run.sh NAME...        only the checks whose names begin so
# Prints one line per check and a summary; logs are in build/gpu_stage/log. Fails if any check failed or none ran.
set -uo pipefail

cd "$(dirname "$0")/../.."
stage=build/gpu_stage
if [ -f build/release/lib/engine/plugins/libengine_cuda_ops.so ] && [ ! -f $stage/commit ]; then tests/gpu/stage.sh || exit; fi
[ -f $stage/commit ] || { echo "gpu tests: no build/gpu_stage: run tests/gpu/stage.sh where the project is built" >&2; exit 66; }
. tests/gpu/environment.sh $stage
. tests/gpu/runs.sh
stage=$gpu_stage
log=$stage/log
rm -rf "$log" && mkdir -p "$log"
gpu_report | tee "$log/report"
nvidia-smi >/dev/null 2>&1 || { echo "gpu tests: not run: no GPU on this machine" >&2; exit 79; }
engine=$stage/bin/engine
export stage log engine
passed=0 failed=0 skipped=0
chosen=("$@")

check() {  # name limit_s command...
  local name=$1 limit=$2 begin=$SECONDS wanted=${#chosen[@]} prefix
  shift 2
  for prefix in "${chosen[@]}"; do [[ $name == "$prefix"* ]] && wanted=0; done
  [ "$wanted" -eq 0 ] || return
  # A shell of its own, so that a function has a deadline too.
  if timeout -k 5 "$limit" bash -c '. tests/gpu/runs.sh; . tests/gpu/checks.sh; "$@"' _ "$@" >"$log/$name" 2>&1; then
    echo "ok      $name ($((SECONDS - begin)) s)"
    passed=$((passed + 1))
  else
    echo "FAILED  $name: $(grep -m1 -E 'FAILED|Failure|engine:|ERROR' "$log/$name" || tail -1 "$log/$name")"
    failed=$((failed + 1))
  fi
}
skip() { echo "skipped $1: $2"; skipped=$((skipped + 1)); }

export ENGINE_CONFORMANCE_PLUGINS=$stage/plugins/libengine_cuda_ops.so
export ENGINE_TEST_OPS=$stage/plugins/libengine_cuda_ops.so ENGINE_TEST_PLUGINS=$stage/plugins
check ops_conformance 200 suite "$stage/bin/ops_conformance"
check attention 90 suite "$stage/bin/cuda_attention_device"
check golden 60 suite "$stage/bin/golden_conformance"
check golden_images 60 suite "$stage/bin/image_golden_conformance"
for run in "${gpu_runs[@]}"; do
  check "$run.float32" 40 one_rank "$run" float32 1e-3
  check "$run.bf16" 40 one_rank "$run" bf16 5e-2
done
check repeated_runs_have_equal_bits 60 repeat_runs
check recorded_steps_have_equal_bits 60 recorded_run
ENGINE_CONFORMANCE_OPS=$stage/plugins/libengine_cuda_ops.so ENGINE_CONFORMANCE_PLUGINS=$stage/plugins/libengine_nccl.so \
  check nccl_one_rank 60 suite "$stage/bin/communicator_conformance" --gtest_filter='*OneRank*'
for run in mlp gpt; do check "nccl_two_ranks.$run" 60 two_ranks "$run"; done
if sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null); then
  export ENGINE_CONFORMANCE_PLUGINS=$stage/plugins/libengine_cuda_ops.so
  for tool in memcheck racecheck; do
    check "$tool" 120 "$sanitizer" --tool $tool --error-exitcode 9 "$stage/bin/golden_conformance" --gtest_filter='*EachGradient*adamw*'
  done
else
  skip memcheck "there is no compute-sanitizer"
  skip racecheck "there is no compute-sanitizer"
fi
echo "$passed passed, $failed failed, $skipped skipped; logs in $log"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
