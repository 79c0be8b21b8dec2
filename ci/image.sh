#!/bin/bash
# Build the image of a wheel and start it once: ci/image.sh WHEEL [TAG]
# The companion beside the wheel, with FlashInfer's kernels, is part of it: the base has no compiler for them.
# ENGINE (podman, buildah's `buildah`, or docker with buildx) and BASE may be set; COMPANION names another one, or
# is "none" for a BASE with nvcc, where kernels are compiled while serving.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(readlink -f "$1")
tag=${2:-localhost/sparkwright:latest}
engine=${ENGINE:-$(command -v podman || command -v docker)}
name=$(basename "$wheel")
series=$(sed -E 's/^vllm-([0-9]+\.[0-9]+).*/\1/' <<<"$name")
machine=$(sed -E 's/.*_(aarch64|x86_64)\.whl$/\1/' <<<"$name")
runtime=${RUNTIME:-patchsets/$series-$machine.requirements.txt}
[ -f "$runtime" ] || { echo "there is no locked runtime for $name: $runtime" >&2; exit 1; }
version=${name#vllm-}
flashinfer=$(sed -nE 's/^flashinfer-python==([^ ]+).*/\1/p' "$runtime")
if [ -n "$flashinfer" ] && [ -z "${COMPANION:-}" ]; then
    # The youngest for the version that is locked: FlashInfer refuses another one's kernels.
    COMPANION=$(ls -t "$(dirname "$wheel")"/flashinfer_jit_cache_sm*-"$flashinfer"+*_"$machine".whl 2>/dev/null | head -n 1 || true)
    [ -n "$COMPANION" ] || {
        echo "there is no companion for $name: no flashinfer_jit_cache_sm…-$flashinfer+…_$machine.whl beside it" >&2
        echo "  recipes with NVFP4 compile kernels with nvcc at their first start, which the image has not" >&2
        echo "  next: sparkwright companion --series $series --platform $machine --arch 12.1a" >&2
        exit 1
    }
fi
companion=${COMPANION:-none}
arguments=(
    --file ci/Containerfile --tag "$tag"
    --build-context "dist=$(dirname "$wheel")" --build-context "runtime=$(dirname "$runtime")"
    --build-arg "WHEEL=$name" --build-arg "RUNTIME=$(basename "$runtime")"
    --build-arg "COMPANION=$([ "$companion" = none ] || basename "$companion")"
    --build-arg "VERSION=${version%%-*}"
    --build-arg "REVISION=$(git rev-parse HEAD)"
    --build-arg "CREATED=$(git log -1 --format=%cI)"
)
[ -z "${BASE:-}" ] || arguments+=(--build-arg "BASE=$BASE")
case $(basename "$engine") in
docker) "$engine" buildx build --load "${arguments[@]}" . ;;
*) "$engine" build --format docker "${arguments[@]}" . ;; # OCI's own format has no health check
esac
# It starts, and not as root.
"$engine" run --rm "$tag" --help >/dev/null || { echo "the image does not start" >&2; exit 1; }
test "$("$engine" run --rm --entrypoint id "$tag" -u)" -eq 10001
test "$("$engine" run --rm --entrypoint /opt/vllm/bin/python "$tag" -c 'from importlib.metadata import version as v; print(v("vllm"))')" = "${version%%-*}"
