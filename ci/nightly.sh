#!/usr/bin/env bash
# One night in continuous integration: follow upstream, and hand on what was found. A night that needs a person is
# no failure of this step: the report and the state are to be kept first.
# In: ONTO, releases or commits separated by spaces. Out: the verdict, and whether there is a wheel.
set -euo pipefail
make --quiet .venv/.ready-verify
folder=.sparkwright/nightly
rm -rf "$folder/report.md" "$folder/wheels"
options=()
for target in ${ONTO:-}; do
    options+=(--onto "$target")
done
status=0
.venv/bin/sparkwright nightly --triton --detailed-exit-code ${options[@]+"${options[@]}"} "$@" || status=$?
case $status in
    0) verdict=green ;;
    94) verdict=nothing-new ;;
    95) verdict=needs-person ;;
    *) exit "$status" ;;
esac
wheel=false
if compgen -G "$folder/wheels/*.whl" >/dev/null; then
    wheel=true
fi
{
    echo "verdict=$verdict"
    echo "wheel=$wheel"
} >>"${GITHUB_OUTPUT:-/dev/stdout}"
if [ -f "$folder/report.md" ]; then
    cat "$folder/report.md" >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
else
    echo "Nothing new upstream." >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
fi
# A cache of continuous integration holds little; the next night makes again what it misses.
.venv/bin/sparkwright store prune --quiet --keep-size "${KEEP_GIB:-6}"
