#!/usr/bin/env bash
# Build what a release has: the default series' wheels for both machines with upstream's kernels, audited and rehearsed,
# their SBOMs, and the tool's own wheel, all in SPARKWRIGHT_DIST. A second run goes on where the first one stopped.
# Out: whether there is anything that no release has yet, the release's tag, and each machine's wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=${SPARKWRIGHT_DIST:-dist}
make --quiet .venv/.ready-verify
version=$(.venv/bin/python -c 'from sparkwright import __version__ as v; print(v)')
if [ "${GITHUB_REF_TYPE:-}" = tag ] && [ "$GITHUB_REF_NAME" != "v$version" ]; then
    echo "the tag is $GITHUB_REF_NAME, and the tool's version v$version: change pyproject.toml, or the tag" >&2
    exit 10
fi
for platform in aarch64 x86_64; do
    make --quiet wheel PLATFORM="$platform" KERNELS=upstream
done
new=false outputs=()
git fetch --quiet --depth 1 origin "refs/heads/${SITE_BRANCH:-published}" 2>/dev/null && known=yes || known=no
for wheel in "$dist"/vllm-*.whl; do
    [[ $wheel =~ _(aarch64|x86_64)\.whl$ ]] # the end of each of its platform tags
    sha256=$(sha256sum "$wheel" | cut -c -64)
    record="wheels/${sha256:0:2}/$sha256/$(basename "$wheel").json"
    [ "$known" = yes ] && git cat-file -e "FETCH_HEAD:$record" 2>/dev/null || new=true
    unzip -p "$wheel" '*.dist-info/sboms/sparkwright.cdx.json' >"$wheel.cdx.json"
    outputs+=("${BASH_REMATCH[1]}=$(basename "$wheel")")
done
[ "${GITHUB_REF_TYPE:-}" != tag ] || new=true
if [ "$new" = true ]; then
    # Both wheels are of one merged tree, and get the evidence.
    compgen -G "$dist/evidence/*/rehearsal*.json" >/dev/null ||
        .venv/bin/sparkwright rehearse --quiet "$(ls "$dist"/vllm-*_x86_64.whl)"
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) .venv/bin/uv build --quiet --wheel --out-dir "$dist/tool"
# A release of a night is named by its wheels: what a tag has released already is not new.
spec=$(basename "$wheel" | cut -d- -f2)
tag=wheels-${spec//+/-}
[ "${GITHUB_REF_TYPE:-}" != tag ] || tag=$GITHUB_REF_NAME
printf '%s\n' "new=$new" "tag=$tag" "spec=${spec//+/-}" "${outputs[@]}" >>"${GITHUB_OUTPUT:-/dev/stdout}"
