#!/usr/bin/env bash
# Installs what the build and the tests need on a Debian machine with Rust and Python, once.
#   scripts/setup.sh build   compiler of .proto files and a virtual environment with the model's fetcher
#   scripts/setup.sh ui      the above build, a browser and a client of it, for the tests of the live page
#   scripts/setup.sh test    the above, etcd, curl, Prometheus, and the tools of tests/python/requirements.txt
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-build}
cache=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}
mkdir -p "$cache"

say() { printf 'setup: %s\n' "$*" >&2; }

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v c++ >/dev/null || missing+=(g++)
command -v protoc >/dev/null || missing+=(protobuf-compiler)
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
[ "$what" = test ] && { command -v etcd >/dev/null || missing+=(etcd-server); }
[ "$what" = test ] && { command -v curl >/dev/null || missing+=(curl); }
if [ "$what" = ui ]; then
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium fonts-dejavu-core)
    command -v node >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
fi
sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
if [ ${#missing[@]} -gt 0 ]; then
    say "installing Debian packages: ${missing[*]}"
    command -v apt-get >/dev/null || { say "no apt-get here: install these yourself, then run again: ${missing[*]}"; exit 1; }
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
# Two programs of the package and nothing else: installed, it would start a service.
if [ "$what" = test ] && ! [ -x "$cache/prometheus/promtool" ] && ! command -v promtool >/dev/null; then
    say "fetching Prometheus for the tests of metrics"
    command -v apt-get >/dev/null || { say "no apt-get here: put prometheus and promtool on PATH, then run again"; exit 1; }
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    (cd "$work"
        apt-get download -qq prometheus 2>/dev/null || { $sudo apt-get update -qq && apt-get download -qq prometheus; }
        dpkg-deb -x prometheus_*.deb . && mkdir -p "$cache/prometheus"
        mv usr/bin/prometheus usr/bin/promtool "$cache/prometheus/")
fi
command -v cargo >/dev/null || { say "cargo is not on PATH: install Rust 1.91 or newer first"; exit 1; }

venv=$cache/venv
[ -x "$venv/bin/pip" ] || { say "making a virtual environment in $venv"; python3 -m venv "$venv"; }
if [ "$what" = test ] && ! cmp -s tests/python/requirements.txt "$venv/requirements.done"; then
    say "installing the test tools"
    "$venv/bin/pip" install -q --disable-pip-version-check -r tests/python/requirements.txt
    cp tests/python/requirements.txt "$venv/requirements.done"
fi

modules=$cache/ui
if [ "$what" = ui ] && ! cmp -s tests/ui/package-lock.json "$modules/package-lock.done"; then
    say "installing the browser's client"
    mkdir -p "$modules"
    cp tests/ui/package.json tests/ui/package-lock.json "$modules"
    npm ci --prefix "$modules" --no-audit --no-fund --loglevel error >/dev/null
    cp tests/ui/package-lock.json "$modules/package-lock.done"
fi
