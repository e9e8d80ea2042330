#!/usr/bin/env bash
# by_size beside the best communicator at each size, in turns: two ranks of this machine, all-reduce of float32, in place.
#   sudo bench/by_size_beside_the_best.sh [SECONDS]          of measuring per size and side (4); needs a build in build/release
# Two tables: shm takes all; tcp up to 64 KiB, gloo above. "within 3 %": the whole 95 % interval lies between 0.97 and 1.03.
set -euo pipefail

engine=${ENGINE:-$(dirname "$(realpath "$0")")/../build/release/bin/engine}

beside() {  # best, smallest and largest size, options of by_size
  local best=$1 from=$2 to=$3
  shift 3
  chrt -r 1 "$engine" bench collectives -n 2 --a "$best" --b by_size "${@/#/--b-set=by_size.}" --format json \
    -b "$from" -e "$to" -f 16 --seconds "${seconds:-4}" --blocks 12 |
    python3 -c '
import json, sys
for row in json.load(sys.stdin)["rows"]:
    case = row["in_place"]
    ratio = case["ratio"]
    high, low, estimate = (1 / speed for speed in [*ratio["interval"], ratio["b_over_a_speed"]])
    word = "within 3 %" if 0.97 <= low and high <= 1.03 else "slower" if low > 1.03 else "not shown"
    print("| %d B | %s | %.1f | %.3f (%.3f to %.3f) | %s |" % (
        row["bytes"], sys.argv[1], case["A"]["time_us"]["median"], estimate, low, high, word))' "$best"
}

seconds=${1:-4}
echo "| size | best | its time, us | by_size takes times as long (95 %) | |"
echo "|---|---|---|---|---|"
beside shm 4 16M default=shm
crossing=(default=gloo second=tcp "table=any 64KiB tcp")
beside tcp 4 64K "${crossing[@]}"
beside gloo 1M 16M "${crossing[@]}"
