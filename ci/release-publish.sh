#!/usr/bin/env bash
# Promote what ci/release-build.sh made to a channel, send it to a release, and publish channel and index:
# ci/release-publish.sh CHANNEL TAG [--dry-run]
# The branch SITE_BRANCH has channels and index, and pages are made of it by ci/site.sh. Its push is the last step, and is
# refused if another publisher was faster: the same command again starts from what that one published.
# In: CHANNEL_KEY, the folder of the channel's key as `tar -cz | base64`; GITHUB_TOKEN, GITHUB_REPOSITORY.
set -euo pipefail
cd "$(dirname "$0")/.."
channel=$1 tag=$2 mode=${3:-}
dist=${SPARKWRIGHT_DIST:-dist} branch=${SITE_BRANCH:-published}
site=$dist/site-branch
keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
export XDG_DATA_HOME=$keys
env -u CHANNEL_KEY -u GITHUB_TOKEN make --quiet .venv/.ready
if [ -n "${CHANNEL_KEY:-}" ]; then
    install -d -m 700 "$keys/sparkwright/publisher"
    base64 -d <<<"$CHANNEL_KEY" | tar -xz -C "$keys/sparkwright/publisher"
    unset CHANNEL_KEY
fi
# Without it, one would be made, and lost with this run.
if [ "$mode" != --dry-run ] && [ ! -d "$keys/sparkwright/publisher/$channel" ]; then
    echo "there is no key for channel $channel in CHANNEL_KEY: docs/publishing.md says how it gets there" >&2
    exit 10
fi

# What an interrupted run left there is made again.
rm -rf "$site"
git worktree prune
git worktree add --quiet --force --detach "$site" HEAD
status=0
git ls-remote --exit-code origin "refs/heads/$branch" >/dev/null || status=$?
case $status in
0)
    git -C "$site" fetch --quiet --depth 1 origin "refs/heads/$branch"
    git -C "$site" checkout --quiet --detach FETCH_HEAD
    ;;
2) # the first release
    git -C "$site" checkout --quiet --orphan "new-$$"
    git -C "$site" rm -rfq .
    printf '%s\n' '*.whl' lease.txt .publish.lock >"$site/.gitignore"
    ;;
*) exit 20 ;;
esac

shopt -s nullglob
wheels=("$dist"/vllm-*.whl "$dist"/flashinfer_jit_cache_sm*_aarch64.whl)
files=("$dist"/*.cdx.json)
# Between two tags the tool changes and its version does not.
[[ $tag != v* ]] || files+=("$dist"/tool/*.whl)
# What made dist/ may have run upstream's code, which could have invented an audit.
rm -f "$dist"/evidence/*/audit.json
env -u GITHUB_TOKEN .venv/bin/sparkwright audit --quiet "${wheels[@]}" >/dev/null
.venv/bin/sparkwright channel promote "${wheels[@]}" --to "$channel" --target "$site"
.venv/bin/sparkwright channel release "$site" "${files[@]}" --tag "$tag" --commit "$(git rev-parse HEAD)" ${mode:+"$mode"}

git -C "$site" add --all
if [ "$mode" = --dry-run ]; then
    echo "besides, on branch $branch:"
    git -C "$site" diff --cached --name-only -z | (cd "$site" && xargs -0 sha256sum)
    exit
fi
git -C "$site" diff --cached --quiet && { echo "nothing is new on branch $branch"; exit; }
git -C "$site" -c user.name=sparkwright -c user.email=sparkwright@localhost commit --quiet -m "$channel: $tag"
git -C "$site" push --quiet origin "HEAD:refs/heads/$branch" || {
    echo "branch $branch was not moved: another publisher was faster, or the token may not" >&2
    echo "  next: run the same command again; what was sent to release $tag is not sent again" >&2
    exit 50
}
