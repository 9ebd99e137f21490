#!/usr/bin/env bash
# Starts the split service and runs clients that others have written against its HTTP: OpenAI's Python client, aiperf,
# and vLLM's serving benchmark. They are installed below the cache folder, once per version: clients/, and
# peers-vllm/ as for `make bench-vllm`, whose client is no package of its own.
#   scripts/bench-clients.sh BATON MODEL
set -euo pipefail
cd "$(dirname "$0")/.."
baton=$1 model=$(realpath "$2")
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}
venv=$cache/clients
packages="openai==3.57.0 aiperf==0.13.0"
requests=32 callers=4 tokens=16

scripts/bench-vllm.sh
vllm=$cache/peers-vllm
if [ "$(cat "$venv/made.with" 2>/dev/null)" != "$packages" ]; then
    python3 -m venv --clear "$venv"
    # shellcheck disable=SC2086
    "$venv/bin/pip" install -q --disable-pip-version-check $packages
    echo "$packages" >"$venv/made.with"
fi
work=$(mktemp -d)
up=
finish() {
    [ -z "$up" ] || { kill -TERM "$up" && wait "$up"; } 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

coproc UP { exec "$baton" up --model "$model" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --prefill-threads 1 --decode-threads 1; }
up=$UP_PID
if ! read -r -t 120 ready <&"${UP[0]}"; then
    echo "the service did not become ready" >&2
    exit 1
fi
address=$(sed -nE 's/.*http=([^ ]+).*/\1/p' <<<"$ready")
export VLLM_NO_USAGE_STATS=1

echo "OpenAI's client:"
"$venv/bin/python" tests/python/openai_client.py "http://$address/v1"

# Load generators make prompts of tokens: they get the model's tokenizer as a folder.
tokenizer=$work/tokenizer
"$vllm/bin/python" tests/python/load_clients.py tokenizer "$model" "$tokenizer" >"$work/tokenizer.log" 2>&1 ||
    { cat "$work/tokenizer.log" >&2; exit 1; }
name=$(curl -sf "http://$address/v1/models" | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')

echo "aiperf:"
"$venv/bin/aiperf" profile --model "$name" --url "http://$address" --endpoint-type chat --streaming \
    --tokenizer "$tokenizer" --synthetic-input-tokens-mean 100 --synthetic-input-tokens-stddev 20 \
    --output-tokens-mean "$tokens" --output-tokens-stddev 0 --extra-inputs ignore_eos:true --random-seed 1 \
    --request-count "$requests" --concurrency "$callers" --ui none --no-gpu-telemetry --no-server-metrics \
    --artifact-dir "$work/aiperf" >"$work/aiperf.log" 2>&1 || { tail -50 "$work/aiperf.log" >&2; exit 1; }
python3 tests/python/load_clients.py aiperf "$work/aiperf" "$requests" "$tokens"

for endpoint in completions chat/completions; do
    echo "vLLM's serving benchmark, /v1/$endpoint:"
    backend=openai
    [ "$endpoint" = completions ] || backend=openai-chat
    "$vllm/bin/python" tests/python/load_clients.py vllm-serve --backend "$backend" --base-url "http://$address" --endpoint "/v1/$endpoint" \
        --model "$name" --tokenizer "$tokenizer" --dataset-name random --random-input-len 100 \
        --random-output-len "$tokens" --num-prompts "$requests" --max-concurrency "$callers" --ignore-eos --seed 1 \
        --disable-tqdm --save-result --result-dir "$work/$backend" >"$work/vllm.log" 2>&1 ||
        { tail -50 "$work/vllm.log" >&2; exit 1; }
    python3 tests/python/load_clients.py vllm "$work/$backend" "$requests" "$tokens"
done
