#!/usr/bin/env bash
# Compiles every kernel for every architecture that is delivered, and fails where one spills, uses local memory, or takes
# more registers than registers.txt allows it.
#   registers.sh NVCC PLUGIN_FOLDER INTERFACES          prints the kernels with the most registers
set -euo pipefail

nvcc=$1 folder=$2 interfaces=$3
bounds=$(dirname "$0")/registers.txt
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

compile() {  # file
  "$nvcc" -std=c++17 -O3 --expt-relaxed-constexpr -I"$folder" -I"$interfaces" -gencode=arch=compute_80,code=sm_80 \
    -gencode=arch=compute_90,code=sm_90 -Xptxas -v -c "$1" -o "$out/$(basename "$1").o" 2>"$out/$(basename "$1").log" ||
    { cat "$out/$(basename "$1").log" >&2; return 1; }
}
export -f compile
export nvcc folder interfaces out
printf '%s\n' "$folder"/kernels/*.cu | xargs -P 2 -I{} bash -c 'compile {}'

# arch registers stack spilled name
sed -nE "s/.*Compiling entry function '([^']*)' for '([^']*)'.*/E \2 \1/p
  s/.* ([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads.*/S \1 \2 \3/p
  s/.*Used ([0-9]+) registers.*/R \1/p" "$out"/*.log |
  awk '$1 == "E" {arch = $2; name = $3} $1 == "S" {stack = $2; spilled = $3 + $4}
       $1 == "R" {print arch, $2, stack, spilled, name}' | c++filt | sort -k2,2nr >"$out/kernels"
awk -v bounds="$bounds" '
  BEGIN {
    while ((getline line < bounds) > 0) {
      if (line ~ /^#/ || line == "") continue
      split(line, part, " "); pattern[++n] = part[1]; bound[n] = part[2]
    }
  }
  {
    limit = -1
    for (i = 1; i <= n && limit < 0; ++i) if ($0 ~ pattern[i]) limit = bound[i]
    ++kernels
    if ($4 > 0 || $3 > 0) { print "spills or uses local memory: " $0; bad = 1 }
    if ($2 > limit) { print "more than " limit " registers: " $0; bad = 1 }
    if (kernels <= 12) print
  }
  END {
    print kernels " kernels on two architectures"
    exit bad || kernels < 100
  }' "$out/kernels"
