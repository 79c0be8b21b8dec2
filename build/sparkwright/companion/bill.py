"""A companion's bill of materials, CycloneDX 1.6: a function of its record, so that an audit repeats it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from sparkwright.base.digests import digest_of, to_json
from sparkwright.companion.package import PROJECT, member_of

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

_SOURCES = {"flashinfer": "flashinfer-python", "tvm_ffi": "apache-tvm-ffi"}
"""Projects whose wheels are compiled from, by their keys in a record."""


def companion_bill(record: Mapping[str, Any], version: str) -> bytes:
    """Return the bill of materials of the companion with this *record*, as canonical JSON.

    The primary component is the wheel. The others are FlashInfer's wheel, whose sources are compiled, that
    of tvm_ffi, whose headers they include, every module, and the packages of the toolchain.

    Args:
        record: as from `record_of`.
        version: the companion's.
    """
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.dependency import Dependency
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from packageurl import PackageURL

    bom = Bom(serial_number=uuid5(NAMESPACE_URL, digest_of(record)))
    bom.metadata.timestamp = None  # type: ignore[assignment]  # its default is the current time
    wheel = Component(
        name=PROJECT, version=version, type=ComponentType.LIBRARY, bom_ref="wheel",
        purl=PackageURL("pypi", None, PROJECT, version),
    )  # fmt: skip
    bom.metadata.component = wheel
    parts = {"module": list(_modules(record, version)), "input": list(_inputs(record))}
    bom.components.update([*parts["module"], *parts["input"]])
    inputs = [Dependency(ref=one.bom_ref) for one in parts["input"]]
    bom.dependencies.add(
        Dependency(ref=wheel.bom_ref, dependencies=[Dependency(ref=one.bom_ref) for one in parts["module"]])
    )
    bom.dependencies.update(Dependency(ref=one.bom_ref, dependencies=inputs) for one in parts["module"])
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    return to_json(json.loads(text)) + b"\n"


def _modules(record: Mapping[str, Any], version: str) -> Iterator[Component]:
    """Yield each module of the wheel."""
    from cyclonedx.model.component import Component, ComponentType

    for name, one in sorted(record["modules"].items()):
        yield Component(
            name=member_of(name), version=version, type=ComponentType.FILE, bom_ref=f"binary:{name}",
            hashes=_sha256(one["sha256"]),
        )  # fmt: skip


def _inputs(record: Mapping[str, Any]) -> Iterator[Component]:
    """Yield the wheels with sources and headers, and the toolchain's packages, that modules are made with."""
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from packageurl import PackageURL

    for ref, project in _SOURCES.items():
        one = record[ref]
        yield Component(
            name=one["filename"], version=one["version"], type=ComponentType.FILE, bom_ref=ref,
            purl=PackageURL("pypi", None, project, one["version"], {"file_name": one["filename"]}),
            hashes=_sha256(one["sha256"]),
        )  # fmt: skip
    for filename, sha256 in sorted(record.get("toolchain", {}).get("packages", {}).items()):
        yield Component(
            name=filename, type=ComponentType.APPLICATION, bom_ref=f"package:{filename}",
            scope=ComponentScope.EXCLUDED, hashes=_sha256(sha256),
        )  # fmt: skip


def _sha256(digest: str) -> list[Any]:
    from cyclonedx.model import HashAlgorithm, HashType

    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)]
