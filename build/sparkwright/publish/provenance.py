"""A wheel's SLSA provenance (v1), as an in-toto statement, unsigned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright.base.digests import sha256_file, to_json
from sparkwright.base.errors import WheelError
from sparkwright.companion.package import is_companion
from sparkwright.companion.wheel import read_companion
from sparkwright.wheel.recorded import RecordedCarry, WheelRecord, read_record
from sparkwright.wheel.sbom import read_bill

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:sparkwright:wheel:v1"
COMPANION_TYPE = "urn:sparkwright:companion:v1"
BUILDER = "urn:sparkwright:builder:local"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Kinds of components, by the beginning of their references, that the wheel was made from.
_INPUTS = ("release", "upstream-wheel", "source:", "package:")


def provenance_of(wheel: Path, *, sha256: str = "") -> bytes:
    """Return the provenance of *wheel* as canonical JSON: an in-toto Statement v1 with SLSA's predicate v1.

    It repeats the record, and of a wheel of vLLM the bill of materials, which `sparkwright audit` checks.
    There is no time in it, so the same wheel gives the same bytes.

    Args:
        wheel: the file.
        sha256: digest of *wheel*, 64 hex digits, if the caller has it; the file is read otherwise.

    Raises:
        ArchiveError: it is damaged or an unsafe archive; see `open_archive`.
        WheelError: it has no record or no bill of materials, or a malformed one.
    """
    definition, details = _of_companion(wheel) if is_companion(wheel.name) else _of_wheel(wheel)
    value = {
        "_type": STATEMENT,
        "subject": [{"name": wheel.name, "digest": {"sha256": sha256 or sha256_file(wheel)}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": definition,
            "runDetails": {**details, "builder": {"id": BUILDER, **details.get("builder", {})}},
        },
    }
    return to_json(value) + b"\n"


def _of_wheel(wheel: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the predicate's ``buildDefinition`` and ``runDetails`` of a wheel of vLLM."""
    record = read_record(wheel)
    point = record.point
    name, _, version = point.made_by.partition(" ")
    pin = point.point.get("pin", {})
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "series": point.series,
            "pin": {key: pin[key] for key in ("version", "commit") if key in pin},
            "patchset": point.point.get("patchset", ""),
            "carries": [carry.name for carry in record.carries],
            "platform": point.platform,
            "kernels": point.kernels,
            **({"arch": record.kernels.arch} if record.kernels else {}),
        },
        "internalParameters": {"trees": point.merge, "version": point.version},
        "resolvedDependencies": [*_inputs(read_bill(wheel)), *_carries(record)],
    }
    return definition, {"builder": {"version": {name: version}}, "metadata": {"invocationId": point.digest}}


def _of_companion(wheel: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the same of a companion."""
    record = read_companion(wheel)
    flashinfer, toolchain = record["flashinfer"], record["toolchain"]
    compiled = {one["filename"]: one["sha256"] for one in (flashinfer, record["tvm_ffi"])}
    inputs = {**compiled, **toolchain["packages"]}
    definition = {
        "buildType": COMPANION_TYPE,
        "externalParameters": {
            "flashinfer": flashinfer["version"],
            "target": record["target"],
            "modules": sorted(one["listed"] for one in record["modules"].values()),
        },
        "internalParameters": {"tree": record["tree"], "toolchain": toolchain["key"]},
        "resolvedDependencies": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(inputs.items())
        ],
    }
    return definition, {}


def _inputs(bill: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the descriptors of files and repositories among the components of a *bill*, by reference."""
    for reference, component in sorted(bill.items()):
        if not reference.startswith(_INPUTS):
            continue
        address, digest = str(component.get("purl", "")), _digest(component)
        commit = address.partition("?")[0].rpartition("@")[2]
        if not digest and _COMMIT.fullmatch(commit):
            digest = {"gitCommit": commit}
        yield {"name": reference, "uri": address, **({"digest": digest} if digest else {})}


def _digest(component: Mapping[str, Any]) -> dict[str, str]:
    return {
        str(one["alg"]).lower().replace("-", ""): str(one["content"]) for one in component.get("hashes", ())
    }


def _carries(record: WheelRecord) -> Iterator[dict[str, Any]]:
    """Yield the descriptors of the applied carries, with pull requests and proofs as annotations."""
    for carry in record.carries:
        if not carry.applied:
            continue
        proof = {"key": carry.proof.key, "verdict": carry.proof.verdict} if carry.proof else None
        annotations = {
            "outcome": carry.outcome,
            **({"source": carry.source} if carry.source else {}),
            **({"pullRequests": list(carry.upstream)} if carry.upstream else {}),
            **({"pullRequest": f"{carry.pull.repository}#{carry.pull.number}"} if carry.pull else {}),
            **({"proof": proof} if proof else {}),
        }
        yield {**_content(carry), "annotations": annotations}


def _content(carry: RecordedCarry) -> dict[str, Any]:
    name = f"carry:{carry.name}"
    if carry.pull is not None:
        head = carry.pull.head
        uri = f"git+{carry.pull.repository}@{head}"
        return {"name": name, "uri": uri, "digest": {"gitCommit": head}}
    if carry.patch is None:
        raise WheelError(
            "no statement can be made",
            because=f"the wheel's record does not name the content of carry {carry.name}",
            next_step="build the wheel with this version of sparkwright",
        )
    return {"name": f"{name}:{carry.patch.file}", "digest": {"sha256": carry.patch.sha256}}
