#!/usr/bin/env bash
# Tokens per second of GPT-2 (124 million parameters, bfloat16, context 1,024) on one GPU beside PyTorch, eager and
# compiled, in one run; times of the single ops; host time of the plugin nccl over plain NCCL calls. One command:
#   bench/gpu.sh            after tests/gpu/stage.sh, as tests/gpu/run.sh says; writes bench/results/DATE-GPU.json
# The contenders take turns. ROUNDS=2, STEPS=20 per block, BATCHES="64 4", OUT=folder of the result; CONFIG=another model of
# tokens, with the engine alone.
# The share of the peak counts 803.5 MFLOP per token and 989.4 TFLOP/s (bfloat16 of an H200); PEAK=... for another GPU.
set -uo pipefail

cd "$(dirname "$0")/.."
stage=build/gpu_stage
[ -f $stage/commit ] || { echo "gpu bench: no build/gpu_stage: run tests/gpu/stage.sh where the project is built" >&2; exit 66; }
. tests/gpu/environment.sh $stage
stage=$gpu_stage
nvidia-smi >/dev/null 2>&1 || { echo "gpu bench: not run: no GPU on this machine" >&2; exit 79; }
rounds=${ROUNDS:-2}
steps=${STEPS:-20}
batches=${BATCHES:-64 4}
config=${CONFIG:-configs/gpt2_124m.pbtxt}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
gpu_report | tee "$out/report"

python3 - "$out/tokens.bin" <<'PYTHON'
import array, random, sys

random.seed(1)
count = 4_000_000
with open(sys.argv[1], "wb") as file:
    array.array("i", [20240520, 1, count] + [0] * 253).tofile(file)
    array.array("H", [random.randrange(50257) for _ in range(count)]).tofile(file)
PYTHON

ours() {  # name batch [more words]
  timeout -k 5 150 "$stage/bin/engine" run "$config" -q --plugin-path "$stage/plugins" \
    --plugins nccl,priority_sched,adamw,cuda_ops --set cuda_ops.precision=bf16 --set "train.batch_per_rank=$2" \
    --set "train.steps=$((10 + 3 * steps))" --set train.evaluate_every=-1 --set train.checkpoint_every=0 \
    --set output.checkpoint= --set "output.metrics=$out/metrics" --set "data.tokens.path=$out/tokens.bin" \
    --set "data.tokens.eval_path=$out/tokens.bin" "${@:3}" >"$out/log" 2>&1 || { echo "$1 failed: $(tail -1 "$out/log")" >&2; return; }
  python3 - "$out/metrics" "$steps" >>"$out/$2.$1" <<'PYTHON'
import json, sys

lines = [line for line in map(json.loads, open(sys.argv[1])) if line["event"] == "step"]
steps = int(sys.argv[2])
blocks = [lines[10 + i * steps : 10 + (i + 1) * steps] for i in range(3)]
print(json.dumps({"seconds": [sum(l["seconds"] for l in b) / len(b) for b in blocks],
                  "first_loss": lines[0]["loss"], "loss": lines[-1]["loss"]}))
PYTHON
}
peer() {  # name batch [more words]
  timeout -k 5 200 python3 bench/peers/gpt2_gpu.py --batch "$2" --steps "$steps" "${@:3}" >>"$out/$2.$1" 2>"$out/log" ||
    echo "$1 failed: $(tail -1 "$out/log")" >&2
}
for round in $(seq "$rounds"); do
  for batch in $batches; do
    echo "round $round of $rounds: batch $batch" >&2
    ours engine "$batch"
    ours engine-recorded "$batch" --set train.record_steps=true
    [ -n "${CONFIG:-}" ] && continue
    peer torch-compile "$batch" --compile
    [ "$round" = 1 ] && peer torch-eager "$batch"
  done
done
[ -x "$stage/bin/cuda_op_times" ] &&
  timeout -k 5 60 "$stage/bin/cuda_op_times" "$stage/plugins/libengine_cuda_ops.so" 64 bf16 --json >"$out/ops"
if [ -x "$stage/bin/nccl_overhead" ]; then
  for rank in 0 1; do
    env NCCL_HOSTID="host$rank" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 \
      NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 RANK=$rank WORLD_SIZE=2 timeout -k 5 60 \
      "$stage/bin/nccl_overhead" "$stage/plugins/libengine_nccl.so" "$out/id" --json >"$out/nccl.$rank" 2>>"$out/log" &
  done
  wait
fi
mkdir -p "${OUT:-bench/results}"
python3 - "$out" "${OUT:-bench/results}" "${PEAK:-989.4}" <<'PYTHON'
import json, pathlib, re, statistics, sys

out, results, peak = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
report = (out / "report").read_text().splitlines()
read = lambda path: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
result = {"report": report, "training": {}, "ops": read(out / "ops"), "nccl": read(out / "nccl.0")}
print("| batch | contender | tokens/s, median | of blocks | share of the peak | of torch-compile |\n|---|---|---|---|---|---|")
for batch in sorted({p.name.split(".")[0] for p in out.glob("*.*") if p.name[0].isdigit()}, key=int, reverse=True):
    runs = {p.name.split(".", 1)[1]: read(p) for p in sorted(out.glob(f"{batch}.*"))}
    runs = {name: lines for name, lines in runs.items() if lines}
    result["training"][batch] = runs
    rates = {name: [int(batch) * 1024 / s for line in lines for s in line["seconds"]] for name, lines in runs.items()}
    base = statistics.median(rates["torch-compile"]) if "torch-compile" in rates else None
    for name, rate in rates.items():
        median = statistics.median(rate)
        share = median * 803.5e6 / (peak * 1e12)
        ratio = f"{median / base:.2f}" if base else "-"
        print(f"| {batch} | {name} | {median:,.0f} | {min(rate):,.0f} to {max(rate):,.0f} | {share:.1%} | {ratio} |")
if not result["training"]:
    sys.exit("gpu bench: nothing was measured")
gpu = next((line for line in report if line.startswith("gpu ")), "gpu unknown")
name = re.sub(r"[^A-Za-z0-9]+", "-", gpu[4:].split(",")[0]).strip("-")
path = results / f"{report[0].split()[1][:10]}-{name}.json"
path.write_text(json.dumps(result, indent=1) + "\n")
print(f"written to {path}")
PYTHON
