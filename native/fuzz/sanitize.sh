#!/usr/bin/env bash
# Runs the fuzzer on the kernels of every instruction set, built with AddressSanitizer and
# UndefinedBehaviorSanitizer. Problems lie in buffers of exactly the promised size.
set -euo pipefail
cd "$(dirname "$0")/../.."
source native/fuzz/tool.sh

have_tools cmake || install_tools cmake
have_tools cmake || skip "make sanitize: it needs cmake"

cmake -S native/fuzz -B build/fuzz >/dev/null
cmake --build build/fuzz --parallel 2
OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive build/fuzz/fuzz 10 1
