#!/bin/bash
# Two hosts with two ranks each: network namespaces on a link of RATE (default 1gbit). Needs root.
#
#   sudo bench/two_hosts.sh build/release/bin/engine bench collectives --insecure --a hier --b tcp \
#     --a-set tcp.interface=eth0 --b-set tcp.interface=eth0
#
# runs the command as ranks 0 and 1 of host 0 and as ranks 2 and 3 of host 1, with torchrun's variables,
# shows what rank 0 prints, and then the bytes that host 0 has sent over the link.
set -euo pipefail

prefix=engine-$$-two
others=$(mktemp)
cleanup() {
  for host in 0 1; do ip netns del "$prefix$host" 2>/dev/null || true; done
  rm -f "$others"
}
trap cleanup EXIT

ip netns add "${prefix}0"
ip netns add "${prefix}1"
ip -n "${prefix}0" link add eth0 type veth peer name eth0 netns "${prefix}1"
for host in 0 1; do
  ip -n "$prefix$host" address add "10.0.0.$((host + 1))/24" dev eth0
  ip -n "$prefix$host" link set lo up
  ip -n "$prefix$host" link set eth0 up
  tc -n "$prefix$host" qdisc add dev eth0 root tbf rate "${RATE:-1gbit}" burst 256kb limit 2mb
done

sent() { ip netns exec "${prefix}0" cat /sys/class/net/eth0/statistics/tx_bytes; }
ranks=()
start() {
  RANK=$1 WORLD_SIZE=4 LOCAL_RANK=$(($1 % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 \
    MASTER_PORT=29501 ip netns exec "$prefix$(($1 / 2))" "${@:2}"
}
before=$(sent)
for rank in 1 2 3; do
  start "$rank" "$@" >>"$others" 2>&1 &
  ranks+=($!)
done
code=0
start 0 "$@" || code=$?
for rank in "${ranks[@]}"; do wait "$rank" || true; done
((code == 0)) || cat "$others" >&2
echo "host 0 sent $(($(sent) - before)) bytes"
exit "$code"
