#!/usr/bin/env bash
# Cross-compiles the kernels for 64-bit Arm (NEON), and runs the fuzzer under qemu.
set -euo pipefail
cd "$(dirname "$0")/../.."
source native/fuzz/tool.sh

tools=(cmake aarch64-linux-gnu-g++ qemu-aarch64)
have_tools "${tools[@]}" || install_tools cmake g++-aarch64-linux-gnu qemu-user
have_tools "${tools[@]}" ||
  skip "make cross: NEON was neither compiled nor run; it needs ${tools[*]}"

cmake -S native/fuzz -B build/cross -DBESTOF_SANITIZE=OFF -DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
cmake --build build/cross --parallel 2
OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
  qemu-aarch64 -L /usr/aarch64-linux-gnu build/cross/fuzz 20 1
