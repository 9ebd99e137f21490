#!/usr/bin/env bash
# Makes a virtual environment below the cache folder, peers/, with an engine to compare ours with: llama.cpp,
# compiled for this machine by its Python package, once per version.
set -euo pipefail
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}
venv=$cache/peers
package=llama-cpp-python==0.3.36

say() { printf 'bench-peers: %s\n' "$*" >&2; }

if [ "$(cat "$venv/made.with" 2>/dev/null)" = "$package" ]; then
    say "$venv is there"
    exit 0
fi
python3 -m venv --clear "$venv"
say "compiling $package in $venv: about ten minutes on two cores"
# The package index has sources alone; pip brings its own cmake.
CMAKE_ARGS="-DGGML_NATIVE=ON ${CMAKE_ARGS:-}" "$venv/bin/pip" install -q --disable-pip-version-check "$package"
"$venv/bin/python" -c 'import llama_cpp; print(llama_cpp.llama_print_system_info().decode())' >&2
echo "$package" >"$venv/made.with"
