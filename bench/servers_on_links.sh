#!/usr/bin/env bash
# Parameter servers on rate-limited links: fifo_sched against priority_sched, measured, bounded and simulated.
#   sudo bench/servers_on_links.sh [FOLDER]          about 4 minutes; needs a build in build/release
# Two ranks and two servers, each on an emulated host of its own; zmq_ps updates at the servers (sync, sgd). Compute is
# replaced by the layer times of VGG-16 and ResNet-50 (times x4, bytes x1/16). Both schedulers cut the same slices ("partitioned
# FIFO"). A row is PROFILE:RATE:SLICE:CREDIT:BUFFER: a credit of 10 to 20 ms of the link, and no more in socket buffers.
# ROWS="..." measures others, STEPS and BLOCKS make it longer.
# The bound: each rank sends M bytes and receives M bytes a step, each server M from and to all ranks together, and a link
# carries both ways at once: C = M / goodput; F + max(B, C) is the best of FIFO, max(F + B, C) the best there is.
set -euo pipefail

cd "$(dirname "$0")/.."
engine=${ENGINE:-build/release/bin/engine}
out=${1:-runs/servers_on_links}
mkdir -p "$out"
rows=(${ROWS:-vgg16:375mbit:262144:524288:262144 resnet50:110mbit:65536:262144:65536})
for row in "${rows[@]}"; do
  IFS=: read -r profile rate slice credit buffer <<<"$row"
  echo "$profile at $rate" >&2
  scheduling=(--set "fifo_sched.slice_bytes=$slice" --set "priority_sched.slice_bytes=$slice"
    --set "priority_sched.credit_bytes=$credit")
  "$engine" bench train --profile "$profile" --link "$rate" -n 2 --servers 2 --a zmq_ps,fifo_sched --b zmq_ps,priority_sched \
    "${scheduling[@]}" --set "zmq_ps.buffer_bytes=$buffer" \
    --steps "${STEPS:-10}" --warmup 4 --blocks "${BLOCKS:-1}" --format json >"$out/$profile-$rate.json"
  "$engine" simulate "configs/profile_$profile.pbtxt" --ranks 2 --servers 2 --bandwidth "$rate" --burst 256kb "${scheduling[@]}" \
    --schedulers fifo_sched,priority_sched --json >"$out/$profile-$rate-simulated.json"
done

python3 - "$out" "${rows[@]}" <<'PYTHON'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
names = ["fifo_sched", "priority_sched"]
print("| profile, link, r | fifo ms | priority ms | fifo / priority (95 %) | best there can be | efficiency of priority | worst simulated |")
print("|---|---|---|---|---|---|---|")
for setting in sys.argv[2:]:
    profile, rate, *_ = setting.split(":")
    run = json.loads((folder / f"{profile}-{rate}.json").read_text())
    schedulers = json.loads((folder / f"{profile}-{rate}-simulated.json").read_text())["schedulers"]
    simulated = [1e3 * {s["name"]: s for s in schedulers}[n]["predictions"][-1]["step_seconds"] for n in names]
    conditions, ratio = run["conditions"], run["ratio"]
    bounds = [1e3 * conditions[f"bound_{b}_seconds"] for b in ("backward_overlap", "full_overlap")]
    measured = [1e3 * run["step_seconds"][side]["median"] for side in "AB"]
    cells = [f"{m:.0f} (bound {b:.0f}, sim {s:.0f})" for m, b, s in zip(measured, bounds, simulated)]
    worst = max(abs(s / m - 1) for s, m in zip(simulated, measured))
    low, high = ratio["interval"]
    print(f"| {profile}, {rate}, {conditions['r']:.2f} | " + " | ".join(cells)
          + f" | {ratio['b_over_a_speed']:.2f} ({low:.2f} to {high:.2f}) | {bounds[0] / bounds[1]:.2f} | {bounds[1] / measured[1]:.3f} | {100 * worst:.1f} % |")
PYTHON
