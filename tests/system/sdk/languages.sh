#!/usr/bin/env bash
# languages.sh ENGINE SDK WORK: the optimizer Lion, built against the SDK with several compilers, settings,
# standard libraries and languages, trains to the same bits in one engine. Exit code 77: nothing but one
# compiler is installed.
set -euo pipefail
engine=$1 sdk=$2 work=$3
project=$(cd "$(dirname "$0")" && pwd)/project

rm -rf "$work"
mkdir -p "$work/plugins"
cp "$project/lion.rs" "$sdk/share/engine/rust/engine.rs" "$work"
built=()

# build NAME COMMAND...: libengine_lion_NAME.so, if the command's compiler is there
build() {
  local name=$1
  shift
  if ! command -v "$1" >/dev/null; then
    echo "not tried: $1 is not installed"
    return
  fi
  "$@" -o "$work/plugins/libengine_lion_$name.so"
  built+=("lion_$name")
}
cxx() {
  local name=$1
  shift
  build "$name" "$@" -std=c++20 -Wall -Wextra -Wno-missing-field-initializers -Werror -fPIC -shared \
    -fvisibility=hidden "-DPLUGIN_NAME=\"lion_$name\"" -isystem "$sdk/include/engine-sdk" "$project/lion.cc"
}

cxx gcc g++ -O2
cxx gcc_debug g++ -O0 -g
cxx gcc_fast g++ -O3 -flto -fno-rtti -fshort-enums -static-libstdc++
cxx clang clang++ -O2
if [ -e "$(clang++ -print-file-name=libc++.so 2>/dev/null)" ]; then
  cxx libcxx clang++ -O2 -stdlib=libc++
else
  echo "not tried: libc++ is not installed"
fi
build c gcc -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -I "$sdk/include/engine-sdk" "$project/lion.c"
build rust rustc --edition 2021 -D warnings -C panic=abort -C lto -O --crate-type cdylib "$work/lion.rs"
[ ${#built[@]} -gt 1 ] || exit 77

for plugin in "${built[@]}"; do
  "$engine" run --plugin-path "$work/plugins" --plugins "$plugin" -n 2 --launcher none \
    --set "data.text.path=\"$project/../../../../docs\"" --set train.steps=40 --set "$plugin.weight_decay=0.01" --set train.learning_rate.base=0.001 \
    --set "output.checkpoint=\"$work/$plugin.st\"" >"$work/$plugin.log"
done
python3 "$(dirname "$0")/same_tensors.py" "$work"/lion_*.st
