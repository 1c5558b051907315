#!/usr/bin/env bash
# Runs the fuzzer under valgrind, on the baseline kernels, for valgrind has no AVX-512. It fails if
# uninitialised memory decides anything, or if anything is read or written out of place. Results and
# scratch stay as they were allocated.
set -euo pipefail
cd "$(dirname "$0")/../.."
source native/fuzz/tool.sh

tools=(cmake valgrind)
have_tools "${tools[@]}" || install_tools cmake valgrind
have_tools "${tools[@]}" || skip "make memcheck: it needs ${tools[*]}"

cmake -S native/fuzz -B build/memcheck -DBESTOF_SANITIZE=OFF -DBESTOF_BASELINE_ONLY=ON >/dev/null
cmake --build build/memcheck --parallel 2
OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
  valgrind --quiet --error-exitcode=1 --exit-on-first-error=yes \
  build/memcheck/fuzz 20 1 unwritten
