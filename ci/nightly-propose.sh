#!/usr/bin/env bash
# Push the branch for the night that was recorded last, and open or update its pull request.
set -euo pipefail
make --quiet .venv/.ready
.venv/bin/sparkwright nightly --propose-last --push --open-pr "$@"
