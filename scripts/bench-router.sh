#!/usr/bin/env bash
# Measures what the router adds to a request and how many it takes, beside smg in its split mode, both in front of
# workers that answer at once. smg is installed below the cache folder, peers-smg/, once per version.
#   scripts/bench-router.sh BATON MODEL [--rounds N …]
set -euo pipefail
cd "$(dirname "$0")/.."
baton=$(realpath "$1") model=$(realpath "$2")
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}
venv=$cache/peers-smg
package=smg==1.13.0

if [ "$(cat "$venv/made.with" 2>/dev/null)" != "$package" ]; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check "$package"
    echo "$package" >"$venv/made.with"
fi
cargo bench --locked --quiet --package baton-router --bench overhead -- run --baton "$baton" --model "$model" \
    --smg "$venv/bin/smg" --json "$cache/bench-router.json" "${@:3}"
echo "the figures as JSON: $cache/bench-router.json"
