#!/usr/bin/env bash
# Schedulers on rate-limited links, measured and simulated: the table of docs/schedulers.md and README.md.
#   sudo bench/schedulers_on_links.sh [FOLDER]       about 15 minutes; needs a build in build/release
# Two ranks on emulated hosts, compute replaced by the layer times of VGG-16 and ResNet-50 (times x4, bytes
# x1/16), r = C / (F + B) near 0.5, 1 and 1.5. fifo_sched cuts the slices that priority_sched cuts (256 KiB): "partitioned FIFO".
set -euo pipefail

cd "$(dirname "$0")/.."
engine=build/release/bin/engine
out=${1:-runs/schedulers_on_links}
mkdir -p "$out"
slices=fifo_sched.slice_bytes=262144
measure() {  # profile rate A B
  "$engine" bench train --profile "$1" --link "$2" -n 2 --a "$3" --b "$4" --a-set "$slices" --b-set "$slices" \
    --steps "${STEPS:-10}" --warmup 4 --blocks 1 --format json --quiet >"$out/$1-$2-$3-$4.json"
}
settings=(vgg16:750mbit vgg16:375mbit vgg16:250mbit resnet50:220mbit resnet50:110mbit resnet50:73.3mbit)
for setting in "${settings[@]}"; do
  profile=${setting%%:*} rate=${setting##*:}
  echo "$profile at $rate" >&2
  measure "$profile" "$rate" sequential_sched fifo_sched
  measure "$profile" "$rate" fifo_sched priority_sched
  "$engine" simulate "configs/profile_$profile.pbtxt" --ranks 2 --bandwidth "$rate" --burst 256kb --set "$slices" \
    --schedulers sequential_sched,fifo_sched,priority_sched --json >"$out/$profile-$rate-simulated.json"
done

python3 - "$out" "${settings[@]}" <<'PYTHON'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
names = ["sequential_sched", "fifo_sched", "priority_sched"]
print("| profile, link, r | sequential ms | fifo ms | priority ms | fifo / priority (95 %) | efficiency of priority | worst simulated |")
print("|---|---|---|---|---|---|---|")
for setting in sys.argv[2:]:
    profile, rate = setting.split(":")
    read = lambda name: json.loads((folder / f"{profile}-{rate}-{name}.json").read_text())
    first, second = read("sequential_sched-fifo_sched"), read("fifo_sched-priority_sched")
    step = lambda run, side: 1e3 * run["step_seconds"][side]["median"]
    measured = [step(first, "A"), step(second, "A"), step(second, "B")]
    simulated = {s["name"]: 1e3 * s["predictions"][-1]["step_seconds"] for s in read("simulated")["schedulers"]}
    conditions = second["conditions"]
    bounds = [1e3 * conditions[f"bound_{b}_seconds"] for b in ("no_overlap", "backward_overlap", "full_overlap")]
    ratio = second["ratio"]
    cells = [f"{m:.0f} (bound {b:.0f}, sim {simulated[n]:.0f})" for m, b, n in zip(measured, bounds, names)]
    worst = max((abs(simulated[n] / m - 1) for m, n in zip(measured, names)))
    low, high = ratio["interval"]
    print(f"| {profile}, {rate}, {conditions['r']:.2f} | " + " | ".join(cells)
          + f" | {ratio['b_over_a_speed']:.2f} ({low:.2f} to {high:.2f}) | {bounds[2] / measured[2]:.3f} | {100 * worst:.1f} % |")
PYTHON
