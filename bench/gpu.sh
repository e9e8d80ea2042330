#!/usr/bin/env bash
# Tokens per second of GPT-2 (124 million parameters, bfloat16, context 1,024) on one GPU beside PyTorch at its best, eager
# and compiled; what that GPU reaches at all in a matrix product and in a copy; times of the single ops.
#   ROUNDS=1 BATCHES=64 STEPS=10 bench/gpu.sh    the shortest form. Eight minutes, as any form: what does not fit is left out
#   bench/gpu.sh                                 ROUNDS=2 BATCHES="64 4" STEPS=20 (per block, of three); ask for DEADLINE=1500
# Needs what tests/gpu/run.sh needs, and PyTorch for the peers. Results: RESULTS/gpu_bench.jsonl, a line per contender as it
# ends, RESULTS/gpu_bench.tar.gz and RESULTS/DATE-GPU.json, which goes to bench/results (tests/gpu/steps.sh has the
# variables). CONFIG=another model of tokens, for the engine alone.
# Contenders take turns; each has a limit, and the most important ones come first. Fails if a batch has no figure of the
# engine or none of a peer.
# shellcheck disable=SC2154 # step and step_data are those of the step
set -uo pipefail

cd "$(dirname "$0")/.." || exit
. tests/gpu/environment.sh
. tests/gpu/steps.sh
export steps=${STEPS:-20} config=${CONFIG:-configs/gpt2_124m.pbtxt} peers=${PEERS:-bench/peers}

engine() {  # batch [more words]
  staged "$stage/bin/engine" run "$config" --plugin-path "$stage/plugins" --plugins null,fifo_sched,adamw,cuda_ops \
    --set cuda_ops.precision=bf16 --set "cuda_ops.tune_file=$results/cuda_ops_tune.txt" \
    --set "train.batch_per_rank=$1" --set "train.steps=$((10 + 3 * steps))" --set train.evaluate_every=-1 \
    --set train.checkpoint_every=0 --set output.checkpoint= --set "output.metrics=$log/$step.metrics" \
    --set "data.tokens.path=$work/tokens.bin" --set "data.tokens.eval_path=$work/tokens.bin" "${@:2}" || return
  python3 - "$log/$step.metrics" >"$step_data" <<'PYTHON'
import json, os, sys

attention = [line.rstrip() for line in open(os.environ["step_log"]) if "attention: " in line]
lines = [line for line in map(json.loads, open(sys.argv[1])) if line["event"] == "step"]
steps = int(os.environ["steps"])
if len(lines) != 10 + 3 * steps:
    sys.exit(f"ERROR: {len(lines)} steps, not {10 + 3 * steps}")
blocks = [lines[10 + i * steps : 10 + (i + 1) * steps] for i in range(3)]
print(json.dumps({"seconds": [sum(line["seconds"] for line in block) / steps for block in blocks],
                  "first_loss": lines[0]["loss"], "loss": lines[-1]["loss"], "attention_by": attention}))
PYTHON
}
# A cache of its own: that of TorchInductor does not tell kinds of attention apart (pytorch issue 185449).
torch() {  # batch mode attention
  # Eager, it has the logits three times in float32 at once: 40 GB of 80, which must not be in pieces.
  [ "$2" != eager ] || export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  TORCHINDUCTOR_CACHE_DIR=$work/inductor/$2.$3 python3 "$peers/gpt2_gpu.py" --batch "$1" --mode "$2" --attention "$3" \
    --steps "$steps" >"$step_data"
}
ceilings() { python3 "$peers/gpu_ceilings.py" >"$step_data"; }
op_times() {  # samples [more words]
  cd "$results" &&
    staged "$stage/bin/cuda_op_times" "$stage/plugins/libengine_cuda_ops.so" "$1" bf16 "${@:2}" --json >"$step_data"
}
summarize() {
  python3 bench/gpu_report.py "$results/gpu_bench.jsonl" bench/gpu_predictions.json "$results"
}

open_results gpu_bench
python3 - "$work/tokens.bin" <<'PYTHON'
import array, random, sys

draw = random.Random(1).randbytes
count = 4_000_000
tokens = bytearray(2 * count)
tokens[0::2] = draw(count)
tokens[1::2] = draw(count).translate(bytes(value % 196 for value in range(256)))  # below 50,257
with open(sys.argv[1], "wb") as file:
    array.array("i", [20240520, 1, count] + [0] * 253).tofile(file)
    file.write(tokens)
PYTHON

for round in $(seq "${ROUNDS:-2}"); do
  [ -n "${CONFIG:-}" ] || [ "$round" -gt 1 ] || step ceilings 90 ceilings
  for batch in ${BATCHES:-64 4}; do
    step "$batch.engine.$round" 90 engine "$batch"
    step "$batch.engine-recorded.$round" 90 engine "$batch" --set train.record_steps=true
    # As the peers: what their attention adds up has no order.
    step "$batch.engine-unordered.$round" 90 engine "$batch" --set cuda_ops.deterministic=false
    [ -z "${CONFIG:-}" ] || continue
    step "$batch.torch-compile-cudnn.$round" 150 torch "$batch" default cudnn
    step "$batch.torch-compile-flash.$round" 150 torch "$batch" default flash
    # CUDA graphs help where steps are short.
    [ "$batch" -ge 16 ] || step "$batch.torch-graphs-cudnn.$round" 150 torch "$batch" reduce-overhead cudnn
  done
done
[ -z "${CONFIG:-}" ] || exit 0
step ops 120 op_times 64
for how in attention=own deterministic=false attention=cudnn; do step "ops-attention.$how" 40 op_times 64 attention $how; done
for batch in ${BATCHES:-64 4}; do
  mode=max-autotune
  [ "$batch" -lt 16 ] || mode+=-no-cudagraphs
  step "$batch.torch-eager-cudnn.1" 60 torch "$batch" eager cudnn
  step "$batch.torch-eager-flash.1" 60 torch "$batch" eager flash
  step "$batch.torch-autotune-cudnn.1" 300 torch "$batch" $mode cudnn
done
