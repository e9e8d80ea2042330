#!/usr/bin/env bash
# run.sh ENGINE PLUGINS NEW WORK: trains with the example plugins in PLUGINS on one, two and three ranks, and
# expects the same held-out loss of all, below that of a guess: the mean of ln 3 for the arm and ln 2 for the half.
# Then with each of the new plugins, as its project in NEW says: they must learn, too.
set -euo pipefail
engine=$1 plugins=$2 new=$3 work=$4
config=$(cd "$(dirname "$0")" && pwd)/run.pbtxt

mkdir -p "$work"
for ranks in 1 2 3; do
  "$engine" run "$config" --launcher none -n "$ranks" --plugin-path "$plugins" | tee "$work/ranks$ranks.log"
  sed -n 's/.*held-out loss \([0-9.]*\).*/\1/p' "$work/ranks$ranks.log" | tail -n 1 >"$work/loss$ranks"
done

# Sums of 2 and 3 ranks round differently in the last digits.
paste -d' ' "$work"/loss1 "$work"/loss2 "$work"/loss3 | awk '
  NF != 3 { print "a run printed no held-out loss"; exit 1 }
  $1 > 0.5 { print "nothing was learned: held-out loss " $1; exit 1 }
  { for (i = 2; i <= 3; ++i) { d = $i - $1; if (d < 0) d = -d
      if (d > 0.001) { print "held-out loss of " i " ranks is " $i ", of one rank " $1; exit 1 } } }'

for kind in communicator scheduler optimizer ops hook dataset model; do
  "$engine" plugins --check "$plugins/libengine_new_$kind.so"
  "$engine" run "$new/new_$kind/new_$kind.pbtxt" -q --launcher none -n 2 --plugin-path "$plugins" | tee "$work/$kind.log"
  awk '/held-out loss/ { learned = $5 < 0.7 } END { if (!learned) { print "nothing was learned"; exit 1 } }' "$work/$kind.log"
done
