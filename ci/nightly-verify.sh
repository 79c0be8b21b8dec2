#!/usr/bin/env bash
# Verify the newest wheel in SPARKWRIGHT_DIST on this machine's card. In: RECIPE; empty for the usual one.
set -euo pipefail
make verify ${RECIPE:+RECIPE="$RECIPE"} ARGS="$*"
