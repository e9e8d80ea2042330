#!/usr/bin/env bash
# Installs what is missing to build the engine on Debian 12, with apt.
#   scripts/install_dependencies.sh          to build and run
#   scripts/install_dependencies.sh tests    also what the tests need
#   scripts/install_dependencies.sh package  also what cpack needs
#   scripts/install_dependencies.sh lint     also what scripts/lint.sh needs
set -euo pipefail

packages=(g++ cmake cppzmq-dev ninja-build ccache pkg-config
          libboost1.81-dev libcli11-dev libdnnl-dev libfmt-dev libgloo-dev libhwloc-dev libjpeg62-turbo-dev libonnx-dev libpng-dev
          libopenmpi-dev libprotobuf-dev libsentencepiece-dev libsodium-dev libspdlog-dev libxxhash-dev libzmq3-dev nlohmann-json3-dev
          openmpi-bin protobuf-compiler zlib1g-dev)
if [ "${1:-}" = tests ]; then
  packages+=(abigail-tools chromium clang iproute2 libboost-context1.81-dev libc++-dev libc++abi-dev libclang-rt-14-dev lld
             mmdebstrap python3 python3-kubernetes python3-yaml rustc)
fi
if [ -n "${1:-}" ]; then
  packages+=(dpkg-dev file libgmock-dev libgtest-dev)
fi

if [ "${1:-}" = lint ]; then
  packages+=(clang clang-format clang-tidy)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "install_dependencies: missing packages: ${missing[*]}; install them as root" >&2
    exit 1
  }
  root=(sudo)
fi
echo "Installing: ${missing[*]}"
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
