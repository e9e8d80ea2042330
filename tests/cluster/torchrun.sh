#!/usr/bin/env bash
# torchrun on two hosts that know each other by name: torchrun.sh ENGINE
set -euo pipefail
. "$(dirname "$0")/hosts.sh"

python=/usr/bin/python3
$python -c 'import torch.distributed.run' 2>/dev/null || skip "needs torch.distributed.run (Debian: python3-torch)"

# Debian's torch 1.13.1 under Python 3.11 needs -r and -t as numbers.
agent() {  # INDEX ARGUMENTS OF engine run...
  local index=$1
  shift
  on n$((index + 1)) timeout 120 $python -m torch.distributed.run --nnodes 2 --nproc_per_node 1 --node_rank "$index" \
    --master_addr n1 --master_port 29400 -r 1 -t 1 --log_dir "$dir/log$index" --no_python \
    "$engine" run "$config" $key "$@"
}
both() {
  agent 1 "$@" &
  agent 0 "$@"
  wait $!
}

for communicator in gloo tcp zmq_ps; do
  check "torchrun, $communicator" both --plugins $communicator
  says 'step +20/20'
done
