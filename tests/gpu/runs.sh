# shellcheck shell=bash
# The training runs that are compared between CPU and GPU. Sourced. Each takes ten steps of 8 samples over all ranks, or what
# RUN_WORDS says.
#   gpu_run_words RUN             sets the array `words`, what comes after `engine run`, and `optimizer`
#   gpu_references ENGINE FOLDER  what they give on the CPU: FOLDER/RUN.RANKS.jsonl
#   same_losses A B TOLERANCE     compares two files of metrics, relatively; with the tolerance 0 the losses must be equal

gpu_runs=(mlp cnn resnet gpt clip)
gpu_runs_of_two=(mlp gpt)
gpu_run_words() {
  local images="--set data.synthetic.samples=256 --set data.synthetic.eval_samples=64"
  local common="--set train.steps=10 --set train.evaluate_samples=64 --set train.evaluate_every=0"
  common+=" --set train.checkpoint_every=0 --set output.checkpoint= --set output.sample_bytes=0 ${RUN_WORDS:-}"
  local text=tests/gpu/gpt.pbtxt clip="--set train.learning_rate.base=0.3 --set clip_norm.max_norm"
  optimizer=sgd
  case $1 in
    mlp) text="$images --set data.synthetic.shape=64 --set model.mlp.hidden=96,80" ;;
    cnn) text="$images --set data.synthetic.shape=1,12,12 --set model.cnn.channels=8,16" ;;
    resnet) text="$images --set data.synthetic.shape=3,16,16 --set model.resnet.blocks=1,1 --set model.resnet.width=8" ;;
    gpt) optimizer=adamw ;;
    clip) text+=" $clip=0.2" ;;
    not_clipped) text+=" $clip=1000" ;;
  esac
  read -ra words <<<"$text $common"
}

gpu_references() {
  local run ranks
  for run in "${gpu_runs[@]/%/ 1}" "${gpu_runs_of_two[@]/%/ 2}" "not_clipped 1"; do
    read -r run ranks <<<"$run"
    gpu_run_words "$run"
    "$1" run "${words[@]}" -q -n "$ranks" --set train.global_batch=8 --plugins "shm,priority_sched,$optimizer,cpu_ops" \
      --set "output.metrics=$2/$run.$ranks.jsonl" || return
  done
  if same_losses "$2/clip.1.jsonl" "$2/not_clipped.1.jsonl" 0.1 >/dev/null 2>&1; then
    echo "ERROR: the run that is to be clipped is not: lower its max_norm" >&2
    return 1
  fi
}

same_losses() {
  python3 - "$@" <<'PYTHON'
import json, sys

def losses(path):
    return [line["loss"] for line in map(json.loads, open(path)) if line["event"] in ("step", "evaluation")]

expected, got, tolerance = losses(sys.argv[1]), losses(sys.argv[2]), float(sys.argv[3])
if len(expected) != len(got) or len(got) < 2:
    sys.exit(f"ERROR: {len(got)} losses, not {len(expected)}")
differences = [abs(a - b) / abs(a) for a, b in zip(expected, got)]
print("relative differences of losses:", *(f"{difference:.2g}" for difference in differences))
if not all(difference <= tolerance for difference in differences):  # NaN is none
    sys.exit(f"ERROR: losses differ by {max(differences):.2g} of themselves, more than {tolerance:.2g}")
PYTHON
}
