#!/usr/bin/env bash
# Starts the split service and runs OpenAI's Python client against its HTTP. The client is installed below the cache
# folder, clients/, once per version.
#   scripts/bench-clients.sh BATON MODEL
set -euo pipefail
cd "$(dirname "$0")/.."
baton=$1 model=$2
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}
venv=$cache/clients
package=openai==3.57.0

if [ "$(cat "$venv/made.with" 2>/dev/null)" != "$package" ]; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check "$package"
    echo "$package" >"$venv/made.with"
fi
coproc UP { exec "$baton" up --model "$model" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --prefill-threads 1 --decode-threads 1; }
up=$UP_PID
trap 'kill -TERM "$up" 2>/dev/null && wait "$up" 2>/dev/null || true' EXIT
if ! read -r -t 120 ready <&"${UP[0]}"; then
    echo "the service did not become ready" >&2
    exit 1
fi
address=$(sed -nE 's/.*http=([^ ]+).*/\1/p' <<<"$ready")
"$venv/bin/python" tests/python/openai_client.py "http://$address/v1"
