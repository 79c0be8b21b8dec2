#!/usr/bin/env bash
# Push the branches for the night that was recorded last, and open or update their pull requests.
set -euo pipefail
make --quiet .venv/.ready
.venv/bin/sparkwright nightly --propose-last --push "$@"
git for-each-ref --format='%(refname:short)' refs/heads/sparkwright/ | while read -r branch; do
    texts=(--title "$(git log -1 --format=%s "$branch")" --body-file .sparkwright/nightly/report.md)
    if [ -n "$(gh pr list --head "$branch" --state open --json url --jq '.[].url' </dev/null)" ]; then
        gh pr edit "$branch" "${texts[@]}" </dev/null
    else
        gh pr create --head "$branch" "${texts[@]}" </dev/null
    fi
done
