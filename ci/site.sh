#!/usr/bin/env bash
# Build the site in dist/site: the documents, and beside them the channels and the index of the branch SITE_BRANCH.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf dist/site
make --quiet docs
status=0
git ls-remote --exit-code origin "refs/heads/${SITE_BRANCH:-published}" >/dev/null || status=$?
[ "$status" != 2 ] || exit 0 # nothing was released yet
git fetch --quiet --depth 1 origin "refs/heads/${SITE_BRANCH:-published}"
for name in $(git ls-tree --name-only FETCH_HEAD); do
    [ ! -e "dist/site/$name" ] || { echo "documents and branch both have $name" >&2; exit 50; }
done
git archive FETCH_HEAD | tar -x -C dist/site
