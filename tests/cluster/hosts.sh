# Two hosts on one machine, to be sourced: n1 and n2 have a network, a name and mounts of their own and are joined by a
# link whose ends have different names. As Debian sets it up, each host's own name stands for 127.0.1.1. The test runs in
# namespaces for processes and mounts, so that nothing of it outlives it, and has /mnt for its files.
#   on HOST COMMAND...    runs it there
#   check NAME COMMAND... ends the test unless it succeeds
#   says REGEX            ends the test unless the last check printed that
#   trains NAME COMMAND... checks `COMMAND... run` with each communicator, and what `COMMAND... bench cluster` says of them
# $engine is the program, $config a short run, $key the flag by which its members prove who they are.

skip() {
  echo "skipped: $*"
  exit 77
}

[ "$(id -u)" -eq 0 ] || skip "needs root, for namespaces"
for program in ip nsenter unshare; do
  command -v "$program" >/dev/null || skip "needs $program (Debian: iproute2, util-linux)"
done
# prepare, if the test has defined it, is what needs this machine's own network: to install packages.
if [ "${ENGINE_CLUSTER_INSIDE:-}" != yes ]; then
  if declare -F prepare >/dev/null; then prepare; fi
  ENGINE_CLUSTER_INSIDE=yes exec unshare --mount --pid --fork --mount-proc --kill-child bash "$0" "$@"
fi

engine=$(realpath "$1")
dir=/mnt
mount -t tmpfs tmpfs $dir
export TMPDIR=$dir
trap 'exit 1' INT TERM HUP
declare -A host=()

on() {
  local name=$1
  shift
  nsenter -t "${host[$name]}" --net --uts --mount "$@"
}

fail() {
  echo "FAILED: $*"
  cat $dir/output
  exit 1
}

check() {
  local name=$1 code=0
  shift
  echo "--- $name"
  "$@" >$dir/output 2>&1 || code=$?
  [ $code -eq 0 ] || fail "exit code $code of: $*"
}

says() {
  grep -Eq -- "$1" $dir/output || fail "it does not say '$1':"
}

trains() {
  local name=$1 mpi="" communicator
  shift
  if "$engine" plugins mpi >/dev/null 2>&1; then mpi=mpi; fi
  for communicator in gloo tcp zmq_ps $mpi; do
    check "$name, $communicator" "$@" run $config $key --plugins "$communicator"
    says 'step +20/20'
  done
  check "$name, bench cluster" "$@" bench cluster $key --communicators gloo,tcp${mpi:+,mpi} --kinds all_reduce --dtypes float32 \
    --max-bytes 4K --blocks 1 --seconds 0.02 --model $config --schedulers fifo_sched --steps 5 --out $dir/cluster
  says 'Two ranks, between hosts'
  [ "$(grep -c 'report:' $dir/output)" -eq 1 ] || fail "there is not one report:"
}

make_host() {  # NAME OTHER OTHER_ADDRESS
  unshare --net --uts --mount sh -c "
    hostname $1
    printf '127.0.0.1 localhost\n127.0.1.1 $1\n$3 $2\n' >$dir/hosts.$1
    mount --bind $dir/hosts.$1 /etc/hosts
    ip link set lo up
    touch $dir/ready.$1
    exec sleep infinity" &
  host[$1]=$!
  until [ -e $dir/ready.$1 ]; do sleep 0.05; done
}

make_host n1 n2 10.77.0.2
make_host n2 n1 10.77.0.1
on n1 ip link add lan0 type veth peer name ib0 netns "${host[n2]}"
on n1 sh -c 'ip address add 10.77.0.1/24 dev lan0 && ip link set lan0 up'
on n2 sh -c 'ip address add 10.77.0.2/24 dev ib0 && ip link set ib0 up'

config=$dir/run.pbtxt
cat >$config <<'TEXT'
model { net { layer { linear { units: 64 } } layer { relu {} } layer { linear { units: 10 } } } }
data { synthetic { shape: 32 classes: 10 samples: 4096 eval_samples: 64 } }
train { steps: 20 batch_per_rank: 8 learning_rate { base: 0.01 } }
plugins: ["fifo_sched", "sgd", "cpu_ops"]
TEXT
key="--key-file $dir/key"
# Of a launcher that may have started this test.
for name in $(compgen -e | grep -E '^(SLURM_|OMPI_|PMI|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCHELASTIC_|JOB_COMPLETION)'); do
  unset "$name"
done
