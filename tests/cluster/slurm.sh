#!/usr/bin/env bash
# Slurm with two nodes: slurm.sh ENGINE. Installs slurm-wlm and munge with apt where they are missing.
set -euo pipefail

prepare() {
  command -v slurmctld >/dev/null && command -v munged >/dev/null && return
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null 2>&1 ||
    skip "needs slurm-wlm and munge, which apt could not install"
}
. "$(dirname "$0")/hosts.sh"

mkdir $dir/state $dir/tmp.n1 $dir/tmp.n2
cat >$dir/slurm.conf <<TEXT
ClusterName=engine
SlurmctldHost=n1(10.77.0.1)
AuthInfo=socket=$dir/munge.socket
SlurmUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
TmpFS=$dir/tmp.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=pmix
KillWait=5
NodeName=n1 NodeAddr=10.77.0.1 CPUs=$(nproc)
NodeName=n2 NodeAddr=10.77.0.2 CPUs=$(nproc)
PartitionName=all Nodes=n1,n2 Default=YES
TEXT
export SLURM_CONF=$dir/slurm.conf
dd if=/dev/urandom of=$dir/munge.key bs=1k count=1 status=none
chmod 600 $dir/munge.key
munged --force --socket $dir/munge.socket --key-file $dir/munge.key --pid-file $dir/munge.pid \
  --log-file $dir/munge.log --seed-file $dir/munge.seed
on n1 slurmctld -c -D -f $SLURM_CONF >$dir/slurmctld.log 2>&1 &
for name in n1 n2; do on $name slurmd -D -N $name -f $SLURM_CONF >$dir/slurmd.$name.log 2>&1 & done

await() {  # WHAT COMMAND...
  local what=$1
  shift
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.2
  done
  tail -n 20 $dir/slurm*.log >$dir/output
  squeue >>$dir/output 2>&1 || true
  cat $dir/job.* >>$dir/output 2>/dev/null || true
  fail "$what did not come:"
}
idle() { [ "$(on n1 sinfo -h -t idle -o %D)" = 2 ]; }
await "two nodes" idle

run() { on n1 timeout 120 srun -N 2 -n 2 "$engine" "$@"; }

# Nothing is set: neither an address nor an interface.
trains srun run
check "srun, two ranks on one node" on n1 timeout 120 srun -N 1 -n 2 "$engine" run $config
says 'step +20/20'
check "srun, bench train" run bench train $config --a gloo --b tcp --blocks 1 --steps 10 --warmup 2 $key
[ "$(grep -c '^order of runs' $dir/output)" -eq 1 ] || fail "there is not one conclusion:"

# What differs between the hosts on purpose, and what may not.
cat >$dir/differ <<TEXT
#!/bin/sh
rate=0.01 more="--set gloo.interface=lan0"
[ \$SLURM_PROCID = 1 ] && rate=\$1 more= && export ENGINE_SOCKET_IFNAME=ib0
exec "$engine" run $config $key --plugins gloo --set train.learning_rate.base=\$rate \$more
TEXT
chmod +x $dir/differ
differ() { on n1 timeout 120 srun -N 2 -n 2 $dir/differ "$1"; }
refused() { ! differ "$1"; }
check "srun, other interfaces" differ 0.01
check "srun, another learning rate" refused 0.02
says "rank 1 has 'train.learning_rate.base: 0.02' and rank 0 has 'train.learning_rate.base: 0.01'"

# A job whose rank is killed starts again and goes on; then it is asked to stop by USR1.
cat >$dir/job.sh <<TEXT
#!/bin/bash
#SBATCH --nodes 2 --ntasks 2 --requeue --open-mode append --output $dir/job.output
srun "$engine" run $config $key --plugins tcp --resume auto --set train.steps=100000000 \
  --set train.checkpoint_every=200 --set output.checkpoint=$dir/job.safetensors
code=\$?
echo "srun ended with \$code"
[ \$code -eq 0 ] || [ \$code -eq 138 ] || scontrol requeue \$SLURM_JOB_ID
TEXT
job=$(on n1 sbatch --parsable $dir/job.sh)
await "a checkpoint" test -s $dir/job.safetensors
# A rank is a process of n2 whose network is that of n2.
for pid in $(pgrep -f -- "engine run $config"); do
  if [ "$(readlink /proc/$pid/ns/net)" = "$(readlink /proc/${host[n2]}/ns/net)" ]; then kill -9 "$pid"; fi
done
await "the requeue" on n1 sh -c "squeue -h -j $job -o %r | grep -i begin"
on n1 scontrol update JobId="$job" StartTime=now
await "a run that goes on" grep -q 'goes on from' $dir/job.output
await "its steps" sh -c "sed '1,/goes on from/d' $dir/job.output | grep -E 'step +[0-9]+/'"
on n1 scancel -s USR1 "$job"
await "the end by USR1" grep -q 'srun ended with 138' $dir/job.output
cp $dir/job.output $dir/output
says 'srun ended with 138'
echo "--- sbatch, killed, requeued, resumed, stopped by USR1"
