#!/usr/bin/env bash
# handshake.sh ENGINE SDK WORK: plugins built against headers that somebody edited. What changes no byte that crosses
# loads and trains; everything else is refused in one sentence before any of its code runs, exit code 79.
# Exit code 77: g++ is not installed.
set -euo pipefail
command -v g++ >/dev/null || exit 77
engine=$(realpath "$1") sdk=$(realpath "$2") work=$3
project=$(cd "$(dirname "$0")" && pwd)/project
rm -rf "$work"
mkdir -p "$work"
failed=0

# A hook of a wire format, whose interface is an extension.
cat >"$work/half_wire.cc" <<'CC'
#include <new>
#include "engine/ext/wire_format.h"
#include "engine/plugin.h"
using namespace engine;
struct HalfWire final : WireHook {
  WireTraits wire_traits() const noexcept override { return {.dtype = DType::kFloat32}; }
  Status Pack(const WireCall& call) noexcept override {
    for (int64_t i = 0; i < call.count; ++i) static_cast<float*>(call.wire)[i] = call.gradient[i];
    return {};
  }
  Status Unpack(const WireCall& call) noexcept override {
    for (int64_t i = 0; i < call.count; ++i) call.gradient[i] = static_cast<float*>(call.wire)[i];
    return {};
  }
};
static StatusValue Create(Host&, const Options&, Object** out) noexcept {
  *out = new (std::nothrow) HalfWire;
  return {};
}
extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "half_wire", .version = "1", .kind = PluginKind::kHook, .doc = "a copy", .create = Create},
    NoOps(), NoOptions());
CC

# try NAME SOURCE EXPECTED HEADER SED...: the sentence has EXPECTED; "loads" for none
try() {
  local name=$1 source=$2 expected=$3 header=$4 code=0
  shift 4
  local folder=$work/$name plugin
  plugin=$(basename "$source" .cc)
  mkdir -p "$folder"
  cp -r "$sdk/include/engine-sdk" "$folder/include"
  for edit in "$@"; do
    cp "$folder/include/engine/$header" "$folder/before"
    sed -i -E "$edit" "$folder/include/engine/$header"
    if cmp -s "$folder/before" "$folder/include/engine/$header"; then
      echo "$name: the edit changed nothing"
      failed=1
    fi
  done
  if ! g++ -std=c++20 -O1 -fPIC -shared -fvisibility=hidden -I "$folder/include" "$source" \
    -o "$folder/libengine_$plugin.so" 2>"$folder/errors"; then
    echo "$name: does not compile: $(grep -m1 error "$folder/errors")"
    failed=1
    return
  fi
  "$engine" run --plugin-path "$folder" --plugins "$plugin" -n 1 --launcher none -q --set train.steps=2 --set output.checkpoint= \
    >"$folder/log" 2>&1 || code=$?
  if [ "$expected" = loads ]; then
    [ $code -eq 0 ] && echo "$name: loads" && return
  else
    [ $code -eq 79 ] && grep -q "$expected" "$folder/log" && [ "$(grep -c . "$folder/log")" -eq 1 ] &&
      echo "$name: $(cat "$folder/log")" && return
  fi
  echo "$name: exit code $code, expected: $expected"
  cat "$folder/log"
  failed=1
}

lion=$project/lion.cc wire=$work/half_wire.cc
try comment "$lion" loads optimizer.h '1i // A comment.'
try argument_renamed "$lion" loads device.h 's/size_t size_bytes, void\*\* out/size_t bytes, void** out/'
try helper_added "$lion" loads status.h 's/^(  bool ok\(\).*)$/\1\n  bool failed() const noexcept { return !ok(); }/'
try enumerator_at_end "$lion" loads gradient_hook.h 's/^(  kSpan = 2,)/  kNext = 3,\n\1/'
try other_role_grows "$lion" loads dataset.h 's/^(  int64_t held_out_samples = 0;)/\1\n  int64_t more = 0;/' \
  's/train_samples, held_out_samples,/train_samples, held_out_samples, more,/'
try float_is_double "$lion" 'another layout of optimizer' optimizer.h 's/float learning_rate = 0/double learning_rate = 0/'
try fields_swapped "$lion" 'another layout of optimizer' optimizer.h \
  's/^  float\* value = nullptr;/  const float* gradient = nullptr;/;t;s/^  const float\* gradient = nullptr;/  float* value = nullptr;/' \
  's/struct_size, value, gradient,/struct_size, gradient, value,/'
try function_inserted "$lion" 'another layout of optimizer' optimizer.h \
  's/(draft\/1", )traits, Update/\1Extra, traits, Update/' \
  's/^(  virtual OptimizerTraits traits)/  virtual void Extra() noexcept {}\n\1/'
try functions_reordered "$lion" 'another layout of optimizer' optimizer.h 's/traits, Update\)/Update, traits)/'
try host_reordered "$lion" 'another layout of the host' host.h 's/rank_info, device,/device, rank_info,/'
try option_value "$lion" 'another layout of options' options.h 's/^  double number = 0; /  float number = 0; /'
try option_spec "$lion" 'options of' options.h 's/FixedString<96> choices/FixedString<80> choices/'
try wire_as_it_is "$wire" loads ext/wire_format.h '1i // A comment.'
try extension_fields_swapped "$wire" 'offers engine.wire_format.draft/1 with another layout' ext/wire_format.h \
  's/^  int64_t offset = 0;/  int64_t count_ = 0;/;t;s/^  int64_t count = 0;/  int64_t offset = 0;/' \
  's/^  int64_t count_ = 0;/  int64_t count = 0;/' 's/offset, count, stream\)/count, offset, stream)/'
try extension_reordered "$wire" 'offers engine.wire_format.draft/1 with another layout' ext/wire_format.h \
  's/Pack, Unpack\)/Unpack, Pack)/'
exit $failed
