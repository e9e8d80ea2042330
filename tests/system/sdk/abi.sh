#!/usr/bin/env bash
# abi.sh SDK WORK [GOLDEN]: a library with debug information that holds every table of functions of the SDK, compared
# by abidiff with that of the last release, GOLDEN. Without GOLDEN it is only made: WORK/probe.so is the next one.
# Exit code 77: abidiff is not installed.
set -euo pipefail
sdk=$1 work=$2 golden=${3:-}
command -v abidiff >/dev/null || exit 77

mkdir -p "$work"
cp "$sdk/include/engine-sdk/engine/engine.h" "$work"
cd "$work"
{
  echo '#include "engine.h"'
  sed -nE 's/^struct (Engine(\w+Functions)) .*/const \1* probe_\2;/p' engine.h
  echo 'const EnginePluginHeader* probe_header;'
  echo 'const EngineOptionSpec* probe_option;'
} >probe.c
gcc -std=c11 -g -fPIC -shared -I . probe.c -o probe.so
[ -z "$golden" ] || abidiff --no-added-syms --drop-private-types "$golden" probe.so
