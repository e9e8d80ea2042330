#!/usr/bin/env bash
# A step of a small GPT on a rate-limited link beside PyTorch DistributedDataParallel, in one run.
#   sudo bench/peers/gpt_on_a_link.sh [RATE]      400mbit; about 5 minutes; needs a build in build/release
#   apt-get install python3-torch libopenblas0-pthread     the peer; without OpenBLAS it takes 20 times as long
# GPT: 4 layers, width 256, 4 heads, context 128, vocabulary 256, batch 8 per rank, AdamW, 2 ranks of one thread.
# The contenders take turns ROUNDS times; the medians are over the steps of all turns, a step being that of
# the slowest rank. PyTorch runs at its best settings on this kind of machine (tuned BLAS and allocator, ranks pinned).
set -euo pipefail

cd "$(dirname "$0")/../.."
rate=${1:-400mbit}
rounds=${ROUNDS:-4}
steps=${STEPS:-20}
engine=build/release/bin/engine
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
head -c 1000000 /dev/urandom >"$out/text"

ours() {  # name scheduler [--set ...]
  local name=$1 scheduler=$2
  shift 2
  "$engine" bench hosts --link "$rate" --timeout 120 -- "$PWD/$engine" run configs/gpt_text.pbtxt -q --insecure \
    --plugins "tcp,$scheduler,adamw,cpu_ops" --set data.text.path="$out/text" --set data.text.context=128 \
    --set model.gpt.width=256 --set train.global_batch=16 --set train.steps=$((steps + 5)) \
    --set train.evaluate_every=-1 --set output.sample_bytes=0 --set output.checkpoint="$out/checkpoint" \
    --set cpu_ops.threads=1 --set output.trace_spans=200000 --trace "$out/trace" "$@" >/dev/null
  /usr/bin/python3 - "$out/trace" "$steps" >>"$out/$name" <<'PYTHON'
import json, sys

ranks = json.load(open(sys.argv[1]))["engine"]["ranks"]
longest = {}
for rank in ranks:
    spans = rank["spans"]  # docs/trace.md
    for kind, _, step, _, _, _, length in zip(*(spans[i::7] for i in range(7))):
        if kind == 2:
            longest[step] = max(longest.get(step, 0), length)
for step in sorted(longest)[-int(sys.argv[2]):]:
    print(longest[step] * 1e-9)
PYTHON
}
peer() {  # name bucket
  env OPENBLAS_CORETYPE=SkylakeX OPENBLAS_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx512 MALLOC_MMAP_MAX_=0 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=67108864 GLOO_SOCKET_IFNAME=eth0 \
    "$engine" bench hosts --link "$rate" --timeout 120 -- /usr/bin/python3 bench/peers/ddp_step.py --model gpt --steps "$steps" --bucket-mb "$2" |
    /usr/bin/python3 -c 'import json, sys; print(*json.loads(sys.stdin.readlines()[-1])["seconds"], sep="\n")' >>"$out/$1"
}

for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  ours priority priority_sched
  ours fifo fifo_sched
  ours sequential sequential_sched
  peer pytorch-1mb 1
  peer pytorch-25mb 25
done
/usr/bin/python3 - "$out" "$rate" <<'PYTHON'
import pathlib, statistics, sys

names = ["priority", "fifo", "sequential", "pytorch-1mb", "pytorch-25mb"]
seconds = {n: sorted(map(float, (pathlib.Path(sys.argv[1]) / n).read_text().split())) for n in names}
best = min(statistics.median(seconds[n]) for n in names if n.startswith("pytorch"))
print(f"| {sys.argv[2]} | ms, median | p10 to p90 | of PyTorch's best |\n|---|---|---|---|")
for name in names:
    values = [1e3 * s for s in seconds[name]]
    at = lambda share: values[int(share * (len(values) - 1))]
    print(f"| {name} | {statistics.median(values):.0f} | {at(.1):.0f} to {at(.9):.0f} | {statistics.median(values) / best / 1e3:.2f} |")
PYTHON
