#!/usr/bin/env bash
# Tests the live page in a headless browser against real processes.
#   scripts/test-ui.sh BATON MODEL [node --test flags]
# With BATON_UI_SHOTS=FOLDER, screenshots are left there.
set -euo pipefail
cd "$(dirname "$0")/.."
export BATON=$1 BATON_MODEL=$2
shift 2
modules=${BATON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton}/ui
BATON_CHROMIUM=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
export BATON_CHROMIUM BATON_UI_MODULES=$modules
BATON=$(realpath "$BATON")
exec node --test --test-concurrency=1 "$@" tests/ui/page.test.mjs
