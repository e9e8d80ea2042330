#!/usr/bin/env bash
# golden.sh ENGINE GOLDEN WORK: the plugin libraries of a release, kept in GOLDEN, load into this engine and train:
# one of each kind, as its configuration beside it says, and the optimizer Lion of each compiler and language, all to
# the same bits.
# golden.sh ENGINE GOLDEN WORK SDK: makes them instead, against the installed SDK.
set -euo pipefail
engine=$(realpath "$1") golden=$2 work=$3 sdk=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$work"  # a run refuses to write over the checkpoint of another
mkdir -p "$work"

if [ -n "$sdk" ]; then
  rm -rf "$golden"
  mkdir -p "$golden"
  "$here/languages.sh" "$engine" "$sdk" "$work/languages"
  cp "$work"/languages/plugins/libengine_lion_{gcc,clang,libcxx,c,rust}.so "$golden"
  for kind in communicator scheduler optimizer ops hook dataset model; do
    (cd "$work" && "$engine" plugins new "golden_$kind" --kind "$kind" >/dev/null)
    cmake -S "$work/golden_$kind" -B "$work/build_$kind" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$sdk" >/dev/null
    cmake --build "$work/build_$kind" >/dev/null
    cp "$work/build_$kind/libengine_golden_$kind.so" "$work/golden_$kind/golden_$kind.pbtxt" "$golden"
  done
  strip "$golden"/*.so
  "$here/abi.sh" "$sdk" "$work/abi"
  cp "$work/abi/probe.so" "$golden"
  exit
fi

for file in "$golden"/libengine_*.so; do
  "$engine" plugins --check "$file" >/dev/null
done
for config in "$golden"/*.pbtxt; do
  "$engine" run "$config" -q --launcher none -n 2 --plugin-path "$golden" --set train.steps=20
done
for file in "$golden"/libengine_lion_*.so; do
  plugin=$(basename "$file" .so)
  plugin=${plugin#libengine_}
  "$engine" run "$golden/golden_ops.pbtxt" -q --launcher none --plugin-path "$golden" --plugins "$plugin" \
    --set "output.checkpoint=\"$work/$plugin.st\""
done
python3 "$here/same_tensors.py" "$work"/lion_*.st
