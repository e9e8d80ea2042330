#!/usr/bin/env bash
# Time of a training step of a GPT (4 layers, width 256, context 128, 8 samples per rank, 1 thread per rank) on one rank,
# on two without communication, and on two with tcp and with shm: alternating, three runs each, medians and deciles in milliseconds.
#   scripts/measure_step.sh TEXT        (needs python3 for the medians)
set -euo pipefail

text=$(realpath "$1")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
measure() {  # name ranks communicator run
  build/release/bin/engine run -q -n "$2" --plugins "$3" --set "data.text.path=$text" --set data.text.context=128 \
    --set model.gpt.width=256 --set train.batch_per_rank=8 --set train.steps=25 --set train.evaluate_every=-1 \
    --set output.sample_bytes=0 --set output.checkpoint= --set cpu_ops.threads=1 \
    --set "output.metrics=$work/$1.$4" 2>/dev/null
}
for run in 1 2 3; do
  measure one_rank 1 null $run
  measure two_ranks_null 2 null $run
  measure two_ranks_tcp 2 tcp $run
  measure two_ranks_shm 2 shm $run
done
python3 - "$work" <<'PY'
import glob, json, statistics, sys
for name in ("one_rank", "two_ranks_null", "two_ranks_tcp", "two_ranks_shm"):
    steps = []
    for path in glob.glob(f"{sys.argv[1]}/{name}.*"):
        lines = [json.loads(line) for line in open(path)]
        steps += [line for line in lines if line["event"] == "step"][5:]  # the first five warm up
    ms = sorted(1e3 * step["seconds"] for step in steps)
    waited = statistics.median(1e3 * step["communication_seconds"] for step in steps)
    print(f"{name:15} median {statistics.median(ms):6.1f}  p10 {ms[len(ms) // 10]:6.1f}  "
          f"p90 {ms[len(ms) * 9 // 10]:6.1f}  waited {waited:.1f}")
PY
