#!/usr/bin/env bash
# gloo_link.sh RATE_MBIT BURST_KB PROGRAM [FLAGS]: runs gloo_pipeline with two ranks in network namespaces of
# their own and a link of RATE_MBIT between them. After a pause the link catches up by at most BURST_KB: of a
# wire that would be nothing, so the fewer, the more a pause costs. Needs root, ip and tc; leaves nothing behind.
set -euo pipefail
rate=$1 burst=$2
shift 2
a=glink$$a b=glink$$b

clean() {
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
}
trap clean EXIT
ip netns add "$a"
ip netns add "$b"
ip link add gl0 netns "$a" type veth peer name gl1 netns "$b"
ip -n "$a" addr add 10.77.0.1/24 dev gl0
ip -n "$b" addr add 10.77.0.2/24 dev gl1
ip -n "$a" link set lo up
ip -n "$b" link set lo up
ip -n "$a" link set gl0 up
ip -n "$b" link set gl1 up
shape=(tbf rate "${rate}mbit" burst "${burst}kb" limit 2mb)
ip netns exec "$a" tc qdisc add dev gl0 root "${shape[@]}"
ip netns exec "$b" tc qdisc add dev gl1 root "${shape[@]}"
# What does not fit into the burst would be cut up, which costs the processor more than all else here.
if ((burst < 66)); then
  ip -n "$a" link set gl0 gso_max_size $((burst * 1000))
  ip -n "$b" link set gl1 gso_max_size $((burst * 1000))
fi
"$@" --ranks 2 --netns "$a,$b" --interfaces gl0,gl1 --link-mbit "$rate" --expect-mb-s "$((rate / 8))"
