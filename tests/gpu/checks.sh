# The checks of run.sh that are more than one command. Sourced; stage, log and engine are set.

# A GoogleTest program, of which at least one test must have run and none may have failed.
suite() {
  "$@" --gtest_brief=1 | tee "$log/suite" && grep -qE '^\[  PASSED  \] [1-9]' "$log/suite"
}
# The losses of a run beside those of the same run on the CPU.
same_losses() {  # reference metrics tolerance
  python3 - "$@" <<'PYTHON'
import json, sys

def losses(path):
    return [line["loss"] for line in map(json.loads, open(path)) if line["event"] in ("step", "evaluation")]

expected, got, tolerance = losses(sys.argv[1]), losses(sys.argv[2]), float(sys.argv[3])
assert len(expected) == len(got) > 1, (len(expected), len(got))
worst = max(abs(a - b) / abs(a) for a, b in zip(expected, got))
print("largest relative difference of losses:", worst)
if worst > tolerance:
    sys.exit(f"ERROR: {worst} is more than {tolerance}")
PYTHON
}
one_rank() {  # run precision tolerance [more words]
  gpu_run_words "$1"
  "$engine" run "${words[@]}" -q --plugin-path "$stage/plugins" --plugins "nccl,priority_sched,$optimizer,cuda_ops" \
    --set train.global_batch=8 --set "cuda_ops.precision=$2" --set "output.metrics=$log/$1.$2.jsonl" "${@:4}" &&
    same_losses "$stage/reference/$1.1.jsonl" "$log/$1.$2.jsonl" "$3"
}
# NCCL refuses two ranks on one GPU unless it takes them for two hosts; then it goes through sockets. Says nothing of speed.
two_ranks() {  # run
  gpu_run_words "$1"
  local rank port=$((20000 + RANDOM % 10000)) pids=() rc=0
  for rank in 0 1; do
    env NCCL_HOSTID="host$rank" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 \
      NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_PROTO=Simple NCCL_RAS_ENABLE=0 NCCL_DEBUG=WARN \
      RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      "$engine" run "${words[@]}" -q --plugin-path "$stage/plugins" --plugins "nccl,priority_sched,$optimizer,cuda_ops" \
      --set cuda_ops.device=0 --set nccl.max_ctas=4 --set train.global_batch=8 \
      --set "output.metrics=$log/$1.two.jsonl" "${@:2}" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || rc=$?; done
  [ $rc -eq 0 ] && same_losses "$stage/reference/$1.2.jsonl" "$log/$1.two.jsonl" 1e-3
}
same_bits() {  # two files of metrics: losses equal to the last bit
  python3 -c 'import json, sys
a, b = ([l["loss"] for l in map(json.loads, open(p)) if "loss" in l] for p in sys.argv[1:])
sys.exit(0 if a == b and len(a) > 1 else f"ERROR: {a} and {b}")' "$@"
}
repeat_runs() {
  one_rank gpt bf16 2e-2 && mv "$log/gpt.bf16.jsonl" "$log/gpt.first.jsonl" && one_rank gpt bf16 2e-2 &&
    same_bits "$log/gpt.first.jsonl" "$log/gpt.bf16.jsonl"
}
recorded_run() {
  one_rank gpt bf16 2e-2 && mv "$log/gpt.bf16.jsonl" "$log/gpt.queued.jsonl" &&
    one_rank gpt bf16 2e-2 --set train.record_steps=true && same_bits "$log/gpt.queued.jsonl" "$log/gpt.bf16.jsonl"
}
