#!/usr/bin/env bash
# Milliseconds of a training step beside PyTorch (DistributedDataParallel over Gloo) on this machine, in one run.
#   bench/training/step_beside_pytorch.sh [MODEL ...]      mlp cnn resnet18 gpt gpt2_124m; needs a build in build/release
#   apt-get install python3-torch libopenblas0-pthread  the peer; without OpenBLAS it takes 20 times as long
# One and two ranks with a thread each, each pinned to a core of its own; gpt2_124m with one rank. The contenders take
# turns ROUNDS times, STEPS steps each after five that warm up; medians and deciles over all turns, a step being that of
# the slowest rank; then STARTS times with one step each: "start" is the median from the start of the processes to its end.
# PyTorch runs at its best settings on the machine: tuned BLAS and allocator, for images the
# better of two memory formats. Its number of threads does not bind Debian's OpenBLAS, which multiplies on the second core
# too unless OPENBLAS_NUM_THREADS says otherwise (it did not before 2026-11-24). gpt2_124m clips on both sides.
# PRECISIONS="float32 bf16" adds bfloat16, PyTorch's by torch.autocast; "of PyTorch's best" is of the same precision.
# The table is kept under bench/results/, by date and processor. Batch norm sees the batch of its rank, as
# DistributedDataParallel has it.
#   sudo LINK=1gbit ROUNDS=2 STEPS=8 bench/training/step_beside_pytorch.sh gpt resnet18      6 minutes
# In place of those: RANKS_PER_HOST=2 ranks on each of two hosts (network namespaces) with such a link between them.
# Efficiency is the throughput over that of the same ranks on the same cores that do not communicate (null; no_sync), and
# what a step received over the link is measured there. COMMUNICATORS="hier,priority_sched ..." and BUCKETS_MB="1 5 25"
# are the contenders.
set -euo pipefail

cd "$(dirname "$0")/../.."
rounds=${ROUNDS:-3}
steps=${STEPS:-20}
starts=${STARTS:-$([ -n "${LINK:-}" ] && echo 0 || echo 5)}
counted=$steps warmup=5
precisions=${PRECISIONS:-float32}
engine=${ENGINE:-$PWD/build/release/bin/engine}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
read -ra models <<<"${*:-mlp cnn resnet18 gpt gpt2_124m}"
link=${LINK:-} ranks_per_host=${RANKS_PER_HOST:-2} communicators=${COMMUNICATORS:-hier,priority_sched tcp,priority_sched gloo,priority_sched}
buckets=${BUCKETS_MB:-1 5 25}
# Debian's OpenBLAS does not know newer processors.
blas=Haswell vectors=avx2
if grep -qw avx512f /proc/cpuinfo; then blas=SkylakeX vectors=avx512; fi

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

# Runs a command as so many ranks, each on a core of its own as far as there are that many; prints what they print.
as_ranks() {  # ranks command ...
  local rank port=$((20000 + RANDOM % 10000))
  export WORLD_SIZE=$1
  for ((rank = 0; rank < $1; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port taskset -c "$rank" "${@:2}" &
  done
  wait
}
on_hosts() {  # command ...: the same on the linked hosts; what host 0 has received of the other is kept beside
  # shellcheck disable=SC2016  # for the shell of the rank
  "$engine" bench hosts --link "$link" -n 2 --ranks-per-host "$ranks_per_host" --timeout 300 -- bash -c \
    'taskset -c $((RANK % $(nproc --all))) "${@:2}" && { [ "$RANK" != 0 ] || cat /sys/class/net/eth0/statistics/rx_bytes >"$1"; }' \
    _ "$out/received" "$@"
}

ours() {  # name model ranks plugins precision
  local words run=(as_ranks "$3") begin=$EPOCHREALTIME
  read -ra words <<<"$(settings "$2")"
  rm -f "$out/metrics" "$out/received"
  if [ "$3" = linked ]; then run=(on_hosts); fi
  # The peak of rank 0 alone is read.
  # shellcheck disable=SC2016
  "${run[@]}" bash -c '/usr/bin/time -o "$1.$RANK" -f %M "${@:2}"' _ "$out/time" "$engine" run "${words[@]}" -q --insecure \
    --plugins "$4,$(optimizer "$2"),cpu_ops" --set train.steps=$((counted + warmup)) \
    --set train.evaluate_every=-1 --set output.checkpoint= --set output.sample_bytes=0 --set train.checkpoint_every=0 \
    --set "output.metrics=$out/metrics" --set cpu_ops.threads=1 --set "cpu_ops.precision=$5" >&2
  # Parameters are host 0's at the start: what it receives is that of the steps.
  /usr/bin/python3 - "$out/metrics" "$(cat "$out/time.0")" "$(cat "$out/received" 2>/dev/null || echo 0)" \
    "$warmup" "$begin" >>"$out/$2.$3.$1" <<'PYTHON'
import json, os, sys

steps = [line for line in map(json.loads, open(sys.argv[1])) if line["event"] == "step"]
# The line of a step is written when it ends.
print(json.dumps({"peak_bytes": 1024 * int(sys.argv[2]), "received_bytes": int(sys.argv[3]) / len(steps),
                  "seconds": [s["seconds"] for s in steps[int(sys.argv[4]):]],
                  "start_seconds": os.stat(sys.argv[1]).st_mtime - float(sys.argv[5])}))
PYTHON
}
peer() {  # name model ranks [option]
  local run=(as_ranks "$3") interface=lo begin=$EPOCHREALTIME
  if [ "$3" = linked ]; then run=(on_hosts) interface=eth0; fi
  OPENBLAS_CORETYPE=$blas OPENBLAS_NUM_THREADS=1 ATEN_CPU_CAPABILITY=$vectors MALLOC_MMAP_MAX_=0 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=67108864 \
    GLOO_SOCKET_IFNAME=$interface "${run[@]}" timeout 300 /usr/bin/python3 bench/peers/ddp_step.py --model "$2" --steps "$counted" \
    --warmup "$warmup" --begin "$begin" "${@:4}" >>"$out/$2.$3.$1"
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
    if [ -n "$link" ]; then
      ours engine-alone "$model" linked null,priority_sched float32
      for plugins in $communicators; do ours "engine-$plugins" "$model" linked "$plugins" float32; done
      # shellcheck disable=SC2086  # a list; 0: without communication
      peer pytorch "$model" linked --bucket-mb 0 $buckets
      continue
    fi
    ranks="1 2"
    if [ "$model" = gpt2_124m ]; then ranks=1; fi
    for n in $ranks; do
      for precision in $precisions; do
        suffix=$([ "$precision" = float32 ] || echo "-$precision")
        autocast=$([ "$precision" = float32 ] || echo --bfloat16)
        if [ "$n" = 1 ]; then
          ours "engine$suffix" "$model" 1 null,priority_sched "$precision"
        else
          ours "engine-shm$suffix" "$model" 2 shm,priority_sched "$precision"
          ours "engine-tcp$suffix" "$model" 2 tcp,priority_sched "$precision"
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
result=bench/results/$(date +%F)${link:+-$link}-$(tr -cs 'A-Za-z0-9\n' - <<<"$processor-$family-$number" | sed 's/-$//').md
mkdir -p bench/results
{
  echo "Steps beside PyTorch, $(date +%F), commit $(git rev-parse --short HEAD): $processor (family $family, model $number), $(nproc) cores,"
  echo "load $(cut -d ' ' -f 1-3 /proc/loadavg) at the end. ROUNDS=$rounds STEPS=$steps STARTS=$starts PRECISIONS=\"$precisions\""
  if [ -n "$link" ]; then
    echo
    echo "Two hosts (network namespaces) of $ranks_per_host ranks, a link of $link between them; all $((2 * ranks_per_host)) ranks share the $(nproc) cores, which is"
    echo "what they do alone, too."
  fi
  echo
/usr/bin/python3 - "$out" "$link" "${models[@]}" <<'PYTHON'
import json, pathlib, statistics, sys

out, link = pathlib.Path(sys.argv[1]), sys.argv[2]
units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
goodput = float(link[:-4]) * units[link[-4:]] * 1448 / 1514 / 8 if link else 0  # bytes a second, as docs/benchmarking.md has it
print("| model | ranks | contender | ms, median | p10 to p90 | of PyTorch's best | peak MiB | start, s |"
      + (" efficiency | MB over the link | which take it, ms |" if link else ""))
print("|---|---|---|---|---|---|---|---|" + ("---|---|---|" if link else ""))
bounds = []
for model in sys.argv[3:]:
    for ranks in ("1", "2", "linked"):
        runs, facts = {}, {}
        for path in sorted(out.glob(f"{model}.{ranks}.*")):
            for line in map(json.loads, path.read_text().splitlines()):
                name = path.name.split(".", 2)[2]
                if ranks == "linked" and name == "pytorch":
                    name += f"-{line['bucket_mb']:g}MB" if line["bucket_mb"] else "-alone"
                runs.setdefault(name, []).extend(line["seconds"])
                facts.setdefault(name, []).append(line)
        medians = {name: statistics.median(seconds) for name, seconds in runs.items()}
        for name, seconds in runs.items():
            best = min(median for peer, median in medians.items() if peer.startswith("pytorch")
                       and not peer.endswith("-alone") and peer.endswith("-bf16") == name.endswith("-bf16"))
            at = lambda share: 1e3 * sorted(seconds)[int(share * (len(seconds) - 1))]
            peak = max(line["peak_bytes"] for line in facts[name])
            starts = [line["start_seconds"] for line in facts[name] if not line["seconds"]]
            row = (f"| {model} | {ranks} | {name} | {1e3 * medians[name]:.1f} | {at(.1):.1f} to {at(.9):.1f} "
                   f"| {medians[name] / best:.2f} | {peak / 2**20:.0f} | " + (f"{statistics.median(starts):.2f} |" if starts else "|"))
            if link:
                alone = medians[name.split("-")[0] + "-alone"]
                received = statistics.median(line["received_bytes"] for line in facts[name])
                row += f" {alone / medians[name]:.2f} | {received / 1e6:.1f} | {1e3 * received / goodput:.0f} |"
            print(row)
        if link and runs:
            gradients = 4 * facts["pytorch-alone"][0]["parameters"]
            on_link = gradients / goodput  # hosts that add up first exchange all gradients once
            for side in ("engine", "pytorch"):
                alone = medians[side + "-alone"]
                bounds.append(f"- {model}, {side}: the gradients, {gradients / 1e6:.1f} MB, take the link {1e3 * on_link:.0f} ms at least, "
                              f"r = {on_link / alone:.2f}, so the efficiency is {min(1, alone / on_link):.2f} at most")
print("\n".join([""] + bounds) if bounds else "", end="\n" if bounds else "")
PYTHON
} | tee "$result"
echo "kept in $result" >&2
