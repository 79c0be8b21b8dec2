#!/usr/bin/env bash
# Push the image LOCAL as NAME:TAG of a registry, and tell its digest there: ci/image-push.sh LOCAL REGISTRY/NAME:TAG
# In: REGISTRY_USER and REGISTRY_TOKEN; without these, whom the engine is logged in as. ENGINE as for ci/image.sh.
set -euo pipefail
engine=${ENGINE:-$(command -v podman || command -v docker)}
name=${2,,}
if [ -n "${REGISTRY_TOKEN:-}" ]; then
    "$engine" login --username "$REGISTRY_USER" --password-stdin "${name%%/*}" <<<"$REGISTRY_TOKEN" >/dev/null
fi
"$engine" tag "$1" "$name"
if [ "$(basename "$engine")" = docker ]; then
    docker push --quiet "$name" >/dev/null
    digest=$(docker inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$name" | sed -n "s|^${name%:*}@||p")
else
    file=$(mktemp)
    "$engine" push --quiet --digestfile "$file" "$name"
    digest=$(cat "$file")
    rm "$file"
fi
printf 'image=%s\ndigest=%s\n' "${name%:*}" "$digest" >>"${GITHUB_OUTPUT:-/dev/stdout}"
