#!/usr/bin/env bash
# hier beside flat tcp, gloo and mpi: 2 + 2 ranks on two hosts (network namespaces) with a link between them, by mpirun.
#   sudo bench/hier_on_a_link.sh [RATE]          1gbit; about 4 minutes; needs a build in build/release and openmpi-bin
# What engine bench cluster recommends there, hier (A) beside each of the others, in turns, and what an all-reduce of 4 MiB
# sends over the link from host 0: a long run less a short one.
set -euo pipefail

engine=${ENGINE:-$(dirname "$(realpath "$0")")/../build/release/bin/engine}
if [ -z "${INSIDE:-}" ]; then
  INSIDE=$(mktemp -d)
  export INSIDE
  trap 'rm -rf "$INSIDE"' EXIT
  "$engine" bench hosts --link "${1:-1gbit}" -n 2 --timeout 500 -- unshare --uts bash "$(realpath "$0")"
  exit
fi

hostname "host$RANK"  # mpirun tells hosts apart by their names
if [ "$RANK" = 1 ]; then
  echo $$ >"$INSIDE/host1"
  until [ -e "$INSIDE/done" ]; do sleep 0.2; done
  exit
fi
trap 'touch "$INSIDE/done"' EXIT
until [ -s "$INSIDE/host1" ]; do sleep 0.1; done
printf '#!/bin/sh\nshift\nexec nsenter -t %s --net --uts --mount sh -c "$*"\n' "$(cat "$INSIDE/host1")" >"$INSIDE/agent"
chmod +x "$INSIDE/agent"

ranks() {  # engine's arguments
  env -u RANK -u WORLD_SIZE -u LOCAL_RANK -u LOCAL_WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --host host0:2,host1:2 -n 4 --bind-to none \
    --mca plm_rsh_agent "$INSIDE/agent" --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --mca mpi_yield_when_idle 1 \
    -x MASTER_ADDR=host0 -x MASTER_PORT=29500 "$engine" "$@" --insecure
}
sent() { cat /sys/class/net/eth0/statistics/tx_bytes; }

ranks bench cluster -q --communicators hier,tcp,gloo,mpi --dtypes float32 --kinds all_reduce -b 4 -e 4M -f 16 --seconds 0.3 2>&1
for other in tcp gloo mpi; do ranks bench collectives --a hier --b "$other" -b 16K -e 16M -f 16 --seconds 0.4; done
echo "| all-reduce of 4 MiB | MB over the link |"
echo "|---|---|"
for communicator in hier tcp gloo mpi; do
  bytes=()
  for iterations in 4 20; do  # in each of two turns, of both placements
    before=$(sent)
    ranks bench collectives --a "$communicator" -b 4M -e 4M --blocks 1 --iterations $((2 * iterations)) >/dev/null
    bytes+=($(($(sent) - before)))
  done
  echo "| $communicator | $(awk "BEGIN { printf \"%.2f\", (${bytes[1]} - ${bytes[0]}) / (4 * 16) / 1e6 }") |"
done
