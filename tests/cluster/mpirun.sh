#!/usr/bin/env bash
# mpirun over two hosts, started without ssh: mpirun.sh ENGINE
set -euo pipefail
. "$(dirname "$0")/hosts.sh"

command -v mpirun >/dev/null || skip "needs mpirun (Debian: openmpi-bin)"

# What mpirun calls in place of ssh: HOST COMMAND...
cat >$dir/agent <<TEXT
#!/bin/sh
shift
exec nsenter -t ${host[n2]} --net --uts --mount sh -c "\$*"
TEXT
chmod +x $dir/agent

run() {
  on n1 timeout 120 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --host n1,n2 -n 2 \
    --mca plm_rsh_agent $dir/agent -x MASTER_ADDR=n1 -x MASTER_PORT=29500 "$engine" "$@"
}

trains mpirun run
check "mpirun, bench collectives" run bench collectives --a gloo --b tcp --max-bytes 4K --blocks 1 --seconds 0.02 $key
says '4 KiB'
check "mpirun, bench train" run bench train $config --a gloo --b tcp --blocks 1 --steps 10 --warmup 2 $key --out $dir/report
says 'report:'
[ "$(grep -c 'report:' $dir/output)" -eq 1 ] || fail "more than one rank has a report:"
