# shellcheck shell=bash disable=SC2154 # step, log and so on are those of the scripts that source this
# The checks of run.sh. Sourced: all_checks calls `check NAME LIMIT_S COMMAND...` for each, and these are its commands. In a
# step, $step, $step_log and $step_data are as steps.sh says; $stage is the stage and $log the folder of the logs.

# A GoogleTest program (with what it is run by, in front): it must end well, of its own accord, with at least one test passed.
suite() {
  local rc=0 passed skipped
  staged "$@" --gtest_brief=1 || rc=$?
  passed=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) tests?[.,].*/\1/p' "$step_log")
  skipped=$(sed -nE 's/^\[  SKIPPED \] ([0-9]+) tests?[.,].*/\1/p' "$step_log")
  echo "{\"passed\": ${passed:-0}, \"skipped\": ${skipped:-0}}" >"$step_data"
  [ $rc -eq 0 ] || return $rc
  if grep -q '^\[  FAILED  \]' "$step_log"; then
    echo "ERROR: a test FAILED, although the program ended with 0"
  elif [ "${passed:-0}" -gt 0 ]; then
    return 0
  elif [ "${skipped:-0}" -gt 0 ]; then
    echo "ERROR: all $skipped tests were skipped"
  else
    echo "ERROR: no test ran"
  fi
  return 1
}
sanitized() {  # tool program filter
  local sanitizer rc=0 api=()
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
    { echo "there is no compute-sanitizer"; return 77; }
  # Waiting is asking, and "not ready" is an answer.
  [ "$1" != memcheck ] || api=(--report-api-errors no)
  suite "$sanitizer" --tool "$1" "${api[@]}" --kernel-name kns=engine --error-exitcode 9 "$stage/bin/$2" --gtest_filter="$3" || rc=$?
  if grep -q 'Device not supported' "$step_log"; then
    echo "compute-sanitizer does not support this machine's device"
    return 77
  fi
  return $rc
}

# Ten steps of one rank on the GPU, see runs.sh. Metrics are in the logs, as $step.NAME.jsonl.
gpu_run() {  # run name [more words]
  gpu_run_words "$1"
  staged "$stage/bin/engine" run "${words[@]}" --plugin-path "$stage/plugins" \
    --plugins "nccl,priority_sched,$optimizer,cuda_ops" --set train.global_batch=8 \
    --set "cuda_ops.tune_file=$results/cuda_ops_tune.txt" --set "output.metrics=$log/$step.$2.jsonl" "${@:3}"
}
as_on_cpu() {  # run precision tolerance [more words]
  gpu_run "$1" gpu --set "cuda_ops.precision=$2" "${@:4}" &&
    same_losses "$stage/reference/$1.1.jsonl" "$log/$step.gpu.jsonl" "$3"
}
# The second of two runs has more words, none of which may change a bit.
equal_bits() {  # words_of_the_second run [words of both]
  local more
  read -ra more <<<"$1"
  gpu_run "$2" first "${@:3}" && gpu_run "$2" second "${@:3}" "${more[@]}" &&
    same_losses "$log/$step.first.jsonl" "$log/$step.second.jsonl" 0
}
# NCCL refuses two ranks on one GPU unless it takes them for two hosts; then it goes through sockets. Says nothing of speed.
two_ranks() {  # run tolerance [more words]
  local rank pids=() rc=0
  export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0 \
    NCCL_MNNVL_ENABLE=0 NCCL_PROTO=Simple NCCL_RAS_ENABLE=0 NCCL_DEBUG=WARN WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 \
    MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
  for rank in 0 1; do
    NCCL_HOSTID=host$rank RANK=$rank LOCAL_RANK=$rank gpu_run "$1" gpu --set cuda_ops.device=0 --set nccl.max_ctas=4 "${@:3}" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || rc=$?; done
  [ $rc -eq 0 ] && same_losses "$stage/reference/$1.2.jsonl" "$log/$step.gpu.jsonl" "$2"
}

all_checks() {
  local plugins=$stage/plugins run record="--set train.record_steps=true"
  local small='*EachGradient*adamw*' short='FlashAttention.AddsToGradients:FlashAttention.RunsAre*'
  export ENGINE_TEST_PLUGINS=$plugins ENGINE_TEST_OPS=$plugins/libengine_cuda_ops.so
  export ENGINE_CONFORMANCE_PLUGINS=$plugins/libengine_cuda_ops.so

  check ops_conformance 200 suite "$stage/bin/ops_conformance"
  ENGINE_ATTENTION_OF_GPT2=1 check attention 90 suite "$stage/bin/cuda_attention_device"
  export ENGINE_TEST_OPS_OPTIONS='cuda_ops { tune_file: "" }'
  check golden.float32 60 suite "$stage/bin/golden_conformance"
  ENGINE_TEST_OPS_OPTIONS='cuda_ops { tune_file: "" precision: "bf16" }' \
    check golden.bf16 60 suite "$stage/bin/golden_conformance"
  check golden.images 60 suite "$stage/bin/image_golden_conformance"
  for run in "${gpu_runs[@]}"; do
    check "$run.float32" 40 as_on_cpu "$run" float32 1e-3
    check "$run.bf16" 40 as_on_cpu "$run" bf16 5e-2
  done
  for run in own cudnn; do
    check "gpt_attention.$run" 40 as_on_cpu gpt bf16 5e-2 --set cuda_ops.attention=$run --set cuda_ops.deterministic=false
  done
  check equal_bits.repeated 60 equal_bits "" gpt --set cuda_ops.precision=bf16
  check equal_bits.recorded 60 equal_bits "$record" gpt --set cuda_ops.precision=bf16
  check equal_bits.recorded_after_evaluations 60 equal_bits "$record" gpt --set cuda_ops.precision=bf16 \
    --set train.evaluate_every=3
  check equal_bits.recorded_with_smaller_batches 60 equal_bits "$record" cnn --set data.synthetic.samples=21
  check nccl.one_rank 60 staged "$stage/bin/engine-conform" "$plugins/libengine_nccl.so" -n 1 \
    --with "$plugins/libengine_cuda_ops.so"
  for run in "${gpu_runs_of_two[@]}"; do check "nccl.two_ranks.$run" 60 two_ranks "$run" 1e-3; done
  # shellcheck disable=SC2086 # two words
  check nccl.two_ranks.recorded 60 two_ranks gpt 1e-3 $record
  check nccl.two_ranks.sharded 60 two_ranks gpt 5e-2 --set train.shard_optimizer=true --set cuda_ops.precision=bf16
  check nccl.two_ranks.cast 60 two_ranks gpt 2e-2 --plugins cast_bf16
  # Tuning runs kernels of cuBLASLt by the dozen.
  export ENGINE_TEST_OPS_OPTIONS='cuda_ops { tune: "off" }'
  check memcheck.attention 90 sanitized memcheck cuda_attention_device "$short"
  check racecheck.attention 90 sanitized racecheck cuda_attention_device "$short"
  check memcheck.model 90 sanitized memcheck golden_conformance "$small"
  check racecheck.model 90 sanitized racecheck golden_conformance "$small"
}
