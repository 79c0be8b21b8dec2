"""A companion's SLSA provenance (v1), as an in-toto statement, unsigned."""

from __future__ import annotations

from pathlib import Path

from sparkwright.companion.package import is_companion
from sparkwright.companion.wheel import read_companion
from sparkwright.publish.provenance import BUILDER, slsa_statement, statement

BUILD_TYPE = "urn:sparkwright:companion:v1"


def companion_statement(wheel: Path, *, sha256: str = "") -> bytes:
    """Return the provenance of a companion as canonical JSON: in-toto Statement v1, SLSA's predicate v1.

    It repeats the wheel's record, which `sparkwright audit` checks.

    Args:
        wheel: the file.
        sha256: digest of *wheel*, if the caller has it; the file is read otherwise.

    Raises:
        ArchiveError: it is damaged or an unsafe archive.
        WheelError: it is no companion, or its record is malformed.
    """
    record = read_companion(wheel)
    flashinfer, toolchain = record["flashinfer"], record["toolchain"]
    compiled = {one["filename"]: one["sha256"] for one in (flashinfer, record["tvm_ffi"])}
    inputs = {**compiled, **toolchain["packages"]}
    definition = {
        "buildType": BUILD_TYPE,
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
    return slsa_statement(wheel, sha256, definition, {"builder": {"id": BUILDER}})


def provenance_of(wheel: Path, *, sha256: str = "") -> bytes:
    """Return the provenance of *wheel*, a companion or a wheel of vLLM; see `companion_statement`.

    Raises:
        ArchiveError: it is damaged or an unsafe archive.
        WheelError: it has no record of what it was made from, or a malformed one.
    """
    made = companion_statement if is_companion(wheel.name) else statement
    return made(wheel, sha256=sha256)
