#!/usr/bin/env bash
# run.sh BUILD WORK: makes the Debian packages of what is built in BUILD, installs them in a clean Debian 12 below WORK, and
# does there what users do: train, also as the pods of a Job do, and build a plugin and have it judged. Exit code 77: it
# cannot run here. MIRROR is where Debian comes from, if not from its own address.
set -euo pipefail
build=$1 work=$2
root=$work/root

skip() {
  echo "skipped: $1"
  exit 77
}
# Runs a command that says something only when it fails.
quietly() {
  "$@" >"$work/command.log" 2>&1 || {
    cat "$work/command.log"
    return 1
  }
}

# Mounts and processes end with namespaces of their own, however this script ends.
if [ "${3:-}" != inside ]; then
  [ "$(id -u)" -eq 0 ] || skip "only root can make another root"
  for program in cpack dpkg-shlibdeps ip mmdebstrap; do
    command -v "$program" >/dev/null || skip "$program is not installed"
  done
  unshare --mount --pid --fork true || skip "there are no namespaces"
  rm -rf "$work"
  mkdir -p "$work"
  unshare --mount --pid --fork --kill-child "$0" "$build" "$work" inside &
  inside=$!
  # What was killed may still write for a moment.
  trap 'kill -KILL $inside 2>/dev/null || true; rm -rf "$work" 2>/dev/null || { sleep 2 && rm -rf "$work"; }' EXIT
  wait $inside
  exit
fi

in_root() { # [VARIABLE=VALUE]... COMMAND...
  "${network[@]}" chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
network=() # what to run a command under
apt=(apt-get install -y --no-install-recommends)
train=(engine run /usr/share/engine/configs/synthetic.pbtxt --set train.steps=50)

quietly cpack --config "$build/CPackConfig.cmake" -B "$work/packages"
mmdebstrap --variant=minbase --dpkgopt=force-unsafe-io bookworm "$root" ${MIRROR:+"$MIRROR"} >"$work/mmdebstrap.log" 2>&1 ||
  skip "no Debian to install from: $(grep -m 1 -E "^[EW]:" "$work/mmdebstrap.log")"
cp /etc/resolv.conf "$root/etc/"
cp "$work"/packages/*.deb "$root/root/"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm"
quietly in_root apt-get update
quietly in_root sh -c "${apt[*]} /root/engine_*.deb"

for communicator in shm tcp; do
  in_root "${train[@]}" -n 2 --plugins $communicator | tee "$work/$communicator.log"
  grep -o 'held-out loss [0-9.]*' "$work/$communicator.log" >"$work/$communicator.loss"
done
cmp "$work/shm.loss" "$work/tcp.loss"

echo "Two pods of a Job, which start before pod 0 has its name"
echo "10.9.8.1 $(hostname)" >>"$root/etc/hosts"
network=(unshare --net sh -ec 'ip link set lo up; ip link add eth0 type veth peer name other; ip link set eth0 up
  ip link set other up; ip address add 10.9.8.1/24 dev eth0; exec "$@"' sh)
in_root WORLD_SIZE=2 MASTER_ADDR=train-0.train MASTER_PORT=29500 sh -ec '
  for index in 0 1; do
    JOB_COMPLETION_INDEX=$index '"${train[*]}"' --key-file /root/key >/root/pod$index.log 2>&1 &
    pods="${pods:-} $!"
  done
  sleep 2
  echo "10.9.8.1 train-0.train" >>/etc/hosts
  for pod in $pods; do wait $pod || { cat /root/pod?.log; exit 1; }; done
  cat /root/pod0.log'
network=()
grep -qFf "$work/tcp.loss" "$root/root/pod0.log"

quietly in_root sh -c "${apt[*]} /root/engine-dev_*.deb cmake g++ make"
in_root sh -exc 'cd /root
  engine plugins new scale --kind hook
  cmake -S scale -B scale/build >scale.log
  cmake --build scale/build
  engine plugins --check scale/build/libengine_scale.so
  engine conform scale/build/libengine_scale.so
  engine run scale/scale.pbtxt -n 2 --plugin-path scale/build'
quietly in_root dpkg --purge engine-dev engine
[ ! -e "$root/usr/lib/engine" ]
