#!/usr/bin/env bash
# Starts the split service, answers one chat prompt on the terminal, prints the receipt, stops it.
#   scripts/demo.sh BATON MODEL PROMPT
set -euo pipefail
baton=$1 model=$2 prompt=$3
log=$(mktemp)
# The ready line names the addresses; port 0 keeps two demos out of each other's way. Prompts this short are
# better prefilled where they decode, but the demo is to show the split.
coproc UP { exec "$baton" up --model "$model" --listen 127.0.0.1:0 --http-listen off --prefill-threads 1 --decode-threads 1 --local-prefill-tokens 16 2>"$log"; }
up=$UP_PID
stop() {
    status=$?
    kill -TERM "$up" 2>/dev/null && wait "$up" 2>/dev/null
    if [ "$status" != 0 ]; then
        echo "the service's log:" >&2
        cat "$log" >&2
    fi
    rm -f "$log"
    exit "$status"
}
trap stop EXIT
if ! read -r -t 120 ready <&"${UP[0]}"; then
    echo "the service did not become ready" >&2
    exit 1
fi
echo "$ready"
address=$(sed -nE 's/.*grpc=([^ ]+).*/\1/p' <<<"$ready")
"$baton" status --connect "$address"
printf '\n> %s\n' "$prompt"
"$baton" generate --connect "$address" --chat "$prompt" --max-tokens 200 --receipt
