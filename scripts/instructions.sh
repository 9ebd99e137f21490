#!/usr/bin/env bash
# Counts the instructions of the engine's AVX2 kernels over fixed pieces of work; needs valgrind.
#   scripts/instructions.sh MODEL
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:?usage: scripts/instructions.sh MODEL}
command -v valgrind >/dev/null || { echo "instructions: valgrind is not here; install it first" >&2; exit 1; }
cargo build --locked --release -q -p baton-engine --example instructions
for work in quantise-64 product-1 product-16 product-512 prefill-64-at-448 decode-1-at-256 decode-1-at-2048 decode-16-at-256; do
    count=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no --toggle-collect='*counted*' \
        target/release/examples/instructions "$model" "$work" 2>&1 | sed -n 's/.*Collected : //p')
    printf '%-20s %15s\n' "$work" "$count"
done
