#!/usr/bin/env bash
# Rehearse a release on stand-ins of the forge and its pages, and on a registry of this machine:
# ci/release-rehearsal.sh [FOLDER]
# It goes from a tag in a fresh clone of HEAD to vLLM and the tool, installed from what was published, and an image that
# was pulled by its digest and serves. If FOLDER has a clone, what was built in it is taken. RUNTIME=yes installs the
# locked runtime with vLLM, several gigabytes; IMAGE=no leaves out the image, which needs root and what tests/image names.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-/var/tmp/sparkwright-release} here=$PWD
step() { printf '%5d s  %s\n' "$SECONDS" "$*"; }
make --quiet .venv/.ready-test
tag=v$(.venv/bin/python -c 'from sparkwright import __version__ as v; print(v)')
mkdir -p "$work"
if [ ! -d "$work/clone" ]; then
    rm -rf "$work/origin.git"
    git clone --quiet --bare . "$work/origin.git"
    git -C "$work/origin.git" tag --force "$tag" HEAD
    git clone --quiet --branch "$tag" "$work/origin.git" "$work/clone" 2>/dev/null
fi
rm -rf "${work:?}"/{forge,pages,owner,reader,installed,tools,bin}
git -C "$work/origin.git" update-ref -d refs/heads/published
mkdir -p "$work"/{forge,pages}

export GITHUB_TOKEN
GITHUB_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
.venv/bin/python tests/support/forge.py "$work/forge" "$work/pages" &
forge=$!
trap 'kill "$forge"' EXIT
until [ -s "$work/forge/addresses" ]; do sleep 0.1; done
set -a
# shellcheck source=/dev/null
. "$work/forge/addresses"
set +a
export GITHUB_REF_TYPE=tag GITHUB_REF_NAME=$tag GITHUB_OUTPUT=$work/outputs
: >"$GITHUB_OUTPUT"

cd "$work/clone"
step "build $tag, $(git rev-parse HEAD)"
ci/release-build.sh
step "built: $(paste -sd ' ' "$GITHUB_OUTPUT")"
sha256sum dist/vllm-*.whl dist/tool/*.whl

secret() { tar -cz -C "$work/owner/sparkwright/publisher" "$1" | base64 -w 0; }
for channel in candidate stable; do
    XDG_DATA_HOME=$work/owner .venv/bin/sparkwright channel key make "$channel"
done
XDG_DATA_HOME=$work/owner .venv/bin/sparkwright channel key rotate candidate --split "$work/owner/roots.pem"
CHANNEL_KEY=$(secret candidate)
export CHANNEL_KEY
step "every upload, by a dry run"
ci/release-publish.sh candidate "$tag" --dry-run
[ ! -e "$work/forge/releases.json" ] || { echo "the dry run asked the forge" >&2; exit 1; }
step "publish to candidate"
ci/release-publish.sh candidate "$tag"
branch=$(git ls-remote origin published)
step "no GB10 has verified it, so that stable refuses it"
status=0
CHANNEL_KEY=$(secret stable) ci/release-publish.sh stable "$tag" || status=$?
[ "$status" = 50 ] && [ "$branch" = "$(git ls-remote origin published)" ] || {
    echo "that ended with $status, or moved the branch" >&2
    exit 1
}
unset CHANNEL_KEY GITHUB_TOKEN

step "deploy the site"
ci/site.sh
cp -r dist/site/. "$work/pages"
digest=$(XDG_DATA_HOME=$work/owner .venv/bin/sparkwright channel key show candidate --json |
    .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["digest"])')
export XDG_DATA_HOME=$work/reader UV_TOOL_DIR=$work/tools UV_TOOL_BIN_DIR=$work/bin
channel=$PAGES/channels/candidate
step "install vLLM from the channel $channel"
.venv/bin/sparkwright channel key pin "$channel" --digest "$digest"
.venv/bin/sparkwright channel verify "$channel" --requirements "$work/wanted.txt"
[ -n "${RUNTIME:-}" ] || sed -i -n '/^vllm @/,/[^\\]$/p' "$work/wanted.txt"
.venv/bin/uv venv --quiet "$work/installed"
.venv/bin/uv pip install --quiet --python "$work/installed/bin/python" --no-deps --require-hashes -r "$work/wanted.txt"
"$work/installed/bin/python" -c 'from importlib.metadata import version as v; print("vllm", v("vllm"))'
step "fetch the other machine's wheel by the index"
page=$PAGES/simple/vllm/
address=$(curl -fsS "$page" | grep -o 'href="[^"]*aarch64\.whl#sha256=[0-9a-f]*' | cut -c 7-)
curl -fsSL "${address%%#*}" | sha256sum | grep "^${address##*=}"
step "install the tool from the index"
.venv/bin/uv tool install --quiet --index "$PAGES/simple/" "sparkwright==${tag#v}"
"$work/bin/sparkwright" --version
cmp <(cat "$work"/tools/sparkwright/lib/python3*/site-packages/sparkwright/project/upstream.lock) upstream.lock
if [ "${IMAGE:-}" != no ]; then
    step "build, push, pull and serve the image"
    cd "$here"
    make --quiet test-image
fi
step "done"
