#!/usr/bin/env bash
# Milliseconds of a training step beside PyTorch (DistributedDataParallel over Gloo) on this machine, in one run.
#   bench/training/step_beside_pytorch.sh [MODEL ...]      mlp cnn resnet18 gpt gpt2_124m; needs a build in build/release
#   apt-get install python3-torch libopenblas0-pthread  the peer; without OpenBLAS it takes 20 times as long
# One and two ranks with a thread each, each pinned to a core of its own; gpt2_124m with one rank. The contenders take
# turns ROUNDS times, STEPS steps each after five that warm up; medians and deciles over all turns, a step being that of
# the slowest rank; then STARTS times with one step each: "start" is the median from the start of the processes to its end.
# PyTorch runs at its best settings on this kind of machine: tuned BLAS and allocator, for images the
# better of two memory formats. Its number of threads does not bind Debian's OpenBLAS, which multiplies on the second core
# too unless OPENBLAS_NUM_THREADS says otherwise (it did not before 2026-11-24). gpt2_124m clips on both sides.
# PRECISIONS="float32 bf16" adds bfloat16, PyTorch's by torch.autocast; "of PyTorch's best" is of the same precision.
# The table is kept under bench/results/, by date and processor. Batch norm sees the batch of its rank, as
# DistributedDataParallel has it.
set -euo pipefail

cd "$(dirname "$0")/../.."
rounds=${ROUNDS:-3}
steps=${STEPS:-20}
starts=${STARTS:-5}
counted=$steps warmup=5
precisions=${PRECISIONS:-float32}
engine=${ENGINE:-$PWD/build/release/bin/engine}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
read -ra models <<<"${*:-mlp cnn resnet18 gpt gpt2_124m}"

settings() {  # model -> the words after `engine run`
  local images="--set data.synthetic.samples=4096 --set data.synthetic.eval_samples=16"
  local sgd="--set sgd.momentum=0.9"
  case $1 in
    mlp) echo "$images --set data.synthetic.shape=784 --set model.mlp.hidden=1024,1024 --set train.batch_per_rank=64 $sgd" ;;
    cnn) echo "configs/cnn_mnist.pbtxt $images --set data.synthetic.shape=1,28,28 --set model.cnn.sync_batch_norm=false --set train.batch_per_rank=64 $sgd" ;;
    resnet18) echo "configs/resnet18_cifar.pbtxt $images --set data.synthetic.shape=3,32,32 --set model.resnet.sync_batch_norm=false --set model.resnet.stem=IMAGENET --set train.batch_per_rank=16 $sgd" ;;
    gpt) echo "configs/gpt_text.pbtxt --set data.text.path=$out/text --set data.text.context=128 --set model.gpt.width=256 --set train.batch_per_rank=8" ;;
    gpt2_124m) echo "configs/gpt2_124m.pbtxt --set data.tokens.path=$out/tokens.bin --set data.tokens.context=64 --set data.tokens.vocabulary=50257 --set train.batch_per_rank=4" ;;
  esac
}
optimizer() { case $1 in gpt*) echo adamw ;; *) echo sgd ;; esac; }

ours() {  # name model ranks communicator precision
  local rank words
  read -ra words <<<"$(settings "$2")"
  local port=$((20000 + RANDOM % 10000)) begin=$EPOCHREALTIME
  for ((rank = 0; rank < $3; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$3 LOCAL_WORLD_SIZE=$3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      taskset -c "$rank" /usr/bin/time -o "$out/time.$rank" -f %M "$engine" run "${words[@]}" -q \
      --plugins "$4,priority_sched,$(optimizer "$2"),cpu_ops" --set train.steps=$((counted + warmup)) \
      --set train.evaluate_every=-1 --set output.checkpoint= --set output.sample_bytes=0 --set train.checkpoint_every=0 \
      --set "output.metrics=$out/metrics" --set cpu_ops.threads=1 --set "cpu_ops.precision=$5" >/dev/null &
  done
  wait
  /usr/bin/python3 - "$out/metrics" "$(cat "$out/time.0")" "$warmup" "$begin" >>"$out/$2.$3.$1" <<'PYTHON'
import json, os, sys

steps = [line for line in map(json.loads, open(sys.argv[1])) if line["event"] == "step"][int(sys.argv[3]):]
# The line of a step is written when it ends.
print(json.dumps({"peak_bytes": 1024 * int(sys.argv[2]), "seconds": [s["seconds"] for s in steps],
                  "start_seconds": os.stat(sys.argv[1]).st_mtime - float(sys.argv[4])}))
PYTHON
}
peer() {  # name model ranks [option]
  local rank port=$((20000 + RANDOM % 10000)) begin=$EPOCHREALTIME
  for ((rank = 0; rank < $3; ++rank)); do
    env OPENBLAS_CORETYPE=SkylakeX OPENBLAS_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx512 MALLOC_MMAP_MAX_=0 \
      GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=67108864 \
      GLOO_SOCKET_IFNAME=lo RANK=$rank WORLD_SIZE="$3" MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      timeout 300 /usr/bin/python3 bench/peers/ddp_step.py --model "$2" --steps "$counted" --warmup "$warmup" \
      --begin "$begin" "${@:4}" >>"$out/$2.$3.$1" &
  done
  wait
}

head -c 1000000 /dev/urandom >"$out/text"
/usr/bin/python3 - "$out/tokens.bin" <<'PYTHON'
import array, random, sys

random.seed(1)
count = 200_000
with open(sys.argv[1], "wb") as file:
    array.array("i", [20240520, 1, count] + [0] * 253).tofile(file)
    array.array("H", [random.randrange(50257) for _ in range(count)]).tofile(file)
PYTHON

for ((round = 1; round <= rounds + starts; ++round)); do
  if ((round > rounds)); then counted=0 warmup=1; fi
  for model in "${models[@]}"; do
    echo "round $round of $((rounds + starts)): $model" >&2
    ranks="1 2"
    if [ "$model" = gpt2_124m ]; then ranks=1; fi
    for n in $ranks; do
      for precision in $precisions; do
        suffix=$([ "$precision" = float32 ] || echo "-$precision")
        autocast=$([ "$precision" = float32 ] || echo --bfloat16)
        if [ "$n" = 1 ]; then
          ours "engine$suffix" "$model" 1 null "$precision"
        else
          ours "engine-shm$suffix" "$model" 2 shm "$precision"
          ours "engine-tcp$suffix" "$model" 2 tcp "$precision"
        fi
        # shellcheck disable=SC2086  # an option or none
        peer "pytorch$suffix" "$model" "$n" $autocast
        if [ "$model" = cnn ] || [ "$model" = resnet18 ]; then
          # shellcheck disable=SC2086
          peer "pytorch-last$suffix" "$model" "$n" --channels-last $autocast
        fi
      done
    done
  done
done
processor=$(lscpu | sed -n 's/^Model name: *//p') family=$(lscpu | sed -n 's/^CPU family: *//p') number=$(lscpu | sed -n 's/^Model: *//p')
result=bench/results/$(date +%F)-$(tr -cs 'A-Za-z0-9\n' - <<<"$processor-$family-$number" | sed 's/-$//').md
mkdir -p bench/results
{
  echo "Steps beside PyTorch, $(date +%F), commit $(git rev-parse --short HEAD): $processor (family $family, model $number), $(nproc) cores,"
  echo "load $(cut -d ' ' -f 1-3 /proc/loadavg) at the end. ROUNDS=$rounds STEPS=$steps STARTS=$starts PRECISIONS=\"$precisions\""
  echo
/usr/bin/python3 - "$out" "${models[@]}" <<'PYTHON'
import json, pathlib, statistics, sys

out = pathlib.Path(sys.argv[1])
print("| model | ranks | contender | ms, median | p10 to p90 | of PyTorch's best | peak MiB | start, s |\n|---|---|---|---|---|---|---|---|")
for model in sys.argv[2:]:
    for ranks in ("1", "2"):
        runs = {}
        for path in sorted(out.glob(f"{model}.{ranks}.*")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            seconds = sorted(s for line in lines for s in line["seconds"])
            start = statistics.median(line["start_seconds"] for line in lines if not line["seconds"])
            runs[path.name.split(".")[2]] = (seconds, max(line["peak_bytes"] for line in lines), start)
        if not runs:
            continue
        for name, (seconds, peak, start) in runs.items():
            best = min(statistics.median(s) for peer, (s, *_) in runs.items()
                       if peer.startswith("pytorch") and peer.endswith("-bf16") == name.endswith("-bf16"))
            at = lambda share: 1e3 * seconds[int(share * (len(seconds) - 1))]
            median = statistics.median(seconds)
            print(f"| {model} | {ranks} | {name} | {1e3 * median:.1f} | {at(.1):.1f} to {at(.9):.1f} "
                  f"| {median / best:.2f} | {peak / 2**20:.0f} | {start:.2f} |")
PYTHON
} | tee "$result"
echo "kept in $result" >&2
