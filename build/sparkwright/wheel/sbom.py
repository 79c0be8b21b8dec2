"""The wheel's software bill of materials: CycloneDX 1.6 in ``dist-info/sboms/`` (PEP 770).

Start reading at `sbom`. It is a function of the wheel's record and the lock, and of nothing else: no time,
no random number. So the audit computes it again, and equal inputs give equal bytes. Its library takes long
to import: this module is imported where it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import (
    Commit,
    Component,
    ComponentScope,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.issue import IssueClassification, IssueType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from sparkwright.base.digests import to_json
from sparkwright.base.errors import WheelError
from sparkwright.lock.model import Lock
from sparkwright.wheel.recorded import COMPILED, RecordedBinary, RecordedCarry, WheelRecord

_UPSTREAM = "upstream-wheel"
_PREFIX = "sparkwright:"


def sbom(record: WheelRecord, lock: Lock) -> bytes:
    """Return the bill of materials of the wheel with this *record*, as canonical JSON.

    The primary component is the wheel: upstream's release as its ancestor, every applied carry as a patch.
    The others are upstream's wheel, each binary, each source that upstream's CMake project downloads, the
    carries' patches and, for binaries compiled here, the packages that they were compiled with. What
    upstream's own tree includes of other projects is not searched for.
    """
    parts = _Parts(record, lock)
    name, _, version = record.point.made_by.partition(" ")
    tool = Component(name=name, version=version, type=ComponentType.APPLICATION)
    wheel, components = parts.wheel(), list(parts.components())
    needed = parts.dependencies(str(one.bom_ref.value) for one in (wheel, *components))
    return bill_of(parts.serial, wheel, components, needed, tools=[tool])


def bill_of(
    serial: UUID,
    wheel: Component,
    components: Sequence[Component],
    needed: Mapping[str, Sequence[str]],
    *,
    tools: Sequence[Component] = (),
) -> bytes:
    """Return the canonical JSON of a bill: *needed* are references by that of what is made of them."""
    bom = Bom(serial_number=serial)
    bom.metadata.timestamp = None  # type: ignore[assignment]  # its default is the current time
    bom.metadata.tools.components.update(tools)
    bom.metadata.component = wheel
    bom.components.update(components)
    by_name = {str(one.bom_ref.value): one.bom_ref for one in (wheel, *components)}
    for reference, names in needed.items():
        dependencies = [Dependency(ref=by_name[name]) for name in names]
        bom.dependencies.add(Dependency(ref=by_name[reference], dependencies=dependencies))
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    return to_json(json.loads(text)) + b"\n"


def components_of(bill: Any) -> dict[str, dict[str, Any]]:
    """Return the components of a *bill*, a JSON value, by reference, primary one and ancestors too."""
    try:
        primary = bill["metadata"]["component"]
        listed = [primary, *primary["pedigree"]["ancestors"], *bill["components"]]
        return {str(one["bom-ref"]): dict(one) for one in listed}
    except (KeyError, TypeError, ValueError) as error:
        raise WheelError("the bill of materials is malformed", because=f"it lacks {error}") from error


class _Parts:
    """The components of one wheel and what depends on what."""

    def __init__(self, record: WheelRecord, lock: Lock) -> None:
        self.record, self.lock = record, lock
        point = record.point
        # Wheels of one build spec differ by platform, and by binaries that could not be compiled.
        self.serial: UUID = uuid5(NAMESPACE_URL, f"{point.digest}/{point.version}/{point.platform}")

    def wheel(self) -> Component:
        """Return the primary component: the wheel, with its pedigree."""
        release, point, sdist = self.lock.release, self.record.point, self.lock.sdist
        home = _web(release.git)
        ancestor = Component(
            name="vllm",
            version=release.version,
            type=ComponentType.LIBRARY,
            bom_ref="release",
            purl=_git_url(release.git, release.commit)
            if sdist is None
            else package_url("vllm", release.version),
            hashes=() if sdist is None else sha256_hash(sdist.sha256),
            external_references=_repository(release.git),
        )
        commit = Commit(uid=release.commit, url=XsUri(f"{home}/commit/{release.commit}") if home else None)
        return Component(
            name="vllm",
            version=point.version,
            type=ComponentType.LIBRARY,
            bom_ref="wheel",
            purl=package_url("vllm", point.version),
            pedigree=Pedigree(ancestors=[ancestor], commits=[commit], patches=self._patches("")),
            properties=_properties(
                {
                    "build-spec": point.digest,
                    "platform": point.platform,
                    "kernels": point.kernels,
                    **{f"tree:{name}": value for name, value in point.merge.items()},
                }
            ),
        )

    def _patches(self, source: str) -> Iterator[Patch]:
        """Yield the applied carries that change *source*, vLLM's own tree if empty."""
        home = _web(self.lock.release.git)
        for carry in self._applied():
            if carry.source != source:
                continue
            pulls = [f"{home}/pull/{number}" for number in carry.upstream if home]
            yield Patch(
                type=PatchClassification.CHERRY_PICK if carry.pull else PatchClassification.UNOFFICIAL,
                diff=Diff(url=XsUri(f"urn:cdx:{self.serial}/1#{_carry_reference(carry)}")),
                resolves=[
                    IssueType(
                        type=IssueClassification.DEFECT,
                        id=carry.name,
                        description=carry.title,
                        references=[XsUri(url) for url in pulls],
                    )
                ],
            )

    def _applied(self) -> list[RecordedCarry]:
        return [carry for carry in self.record.carries if carry.applied]

    def components(self) -> Iterator[Component]:
        """Yield every component but the primary one."""
        yield self._upstream_wheel()
        yield from (self._binary(one) for one in self.record.binaries)
        yield from self._sources()
        yield from (self._carry(one) for one in self._applied())
        yield from self._packages()

    def _upstream_wheel(self) -> Component:
        artifact, version = self.lock.wheel(self.record.point.platform), self.lock.release.version
        return Component(
            name=artifact.filename,
            version=version,
            type=ComponentType.FILE,
            bom_ref=_UPSTREAM,
            purl=package_url("vllm", version, file_name=artifact.filename),
            hashes=sha256_hash(artifact.sha256),
            properties=_properties({"commit": artifact.commit, "trust": artifact.trust}),
        )

    def _binary(self, binary: RecordedBinary) -> Component:
        attested = self.record.kernels.attested if self.record.kernels else {}
        return Component(
            name=binary.member,
            version=self.record.point.version,
            type=ComponentType.FILE,
            bom_ref=f"binary:{binary.member}",
            hashes=sha256_hash(binary.sha256),
            properties=_properties(
                {"provider": binary.provider, "from": binary.origin, "attested": attested.get(binary.member)}
            ),
        )

    def _sources(self) -> Iterator[Component]:
        """Yield the sources that upstream's CMake project downloads, and those mounted in them."""
        pins = self.lock.native.sources if self.record.kernels and self.lock.native else {}
        for name in sorted({*self.lock.sources, *pins}):
            declared, pin = self.lock.sources.get(name), pins.get(name)
            repository = declared.repository if declared else pin.repository if pin else ""
            ref = declared.ref if declared else pin.ref if pin else ""
            patches = list(self._patches(name))
            yield Component(
                name=name,
                version=ref,
                type=ComponentType.LIBRARY,
                bom_ref=f"source:{name}",
                purl=_git_url(repository, ref),
                external_references=_repository(repository),
                pedigree=Pedigree(patches=patches) if patches else None,
                properties=_properties(
                    {
                        "declared-in": declared.declared_in if declared else None,
                        "tree": pin.tree if pin else None,
                    }
                ),
            )

    def _carry(self, carry: RecordedCarry) -> Component:
        pull, patch = carry.pull, carry.patch
        references = []
        if pull is not None and (home := _web(pull.repository)):
            url = XsUri(f"{home}/pull/{pull.number}")
            references = [ExternalReference(type=ExternalReferenceType.ISSUE_TRACKER, url=url)]
        return Component(
            name=f"carries/{carry.name}/{patch.file}" if patch else f"carries/{carry.name}",
            version=pull.head if pull else None,
            type=ComponentType.FILE,
            bom_ref=_carry_reference(carry),
            description=carry.title,
            scope=ComponentScope.EXCLUDED,  # an input of the build, not a part of the wheel
            hashes=sha256_hash(patch.sha256) if patch else (),
            external_references=references,
            properties=_properties({"outcome": carry.outcome}),
        )

    def _packages(self) -> Iterator[Component]:
        """Yield the packages that binaries were compiled with."""
        for package in self.record.kernels.packages if self.record.kernels else ():
            yield Component(
                name=package.project,
                version=package.version,
                type=ComponentType.APPLICATION,
                bom_ref=f"package:{package.filename}",
                scope=ComponentScope.EXCLUDED,
                purl=package_url(package.project, package.version, file_name=package.filename),
                hashes=sha256_hash(package.sha256),
            )

    def dependencies(self, components: Iterable[str]) -> dict[str, list[str]]:
        """Return the components that each one is made of or with, by their references."""
        names = sorted(components)
        sources = [name for name in names if name.startswith("source:")]
        packages = [name for name in names if name.startswith("package:")]
        found = {name: list[str]() for name in names}
        found["wheel"] = [name for name in names if name.startswith(("binary:", "carry:"))] + [_UPSTREAM]
        found[_UPSTREAM] = sources
        for binary in self.record.binaries:
            compiled = binary.provider == COMPILED
            made_of = [*self._compiled_from(binary.member), *packages] if compiled else [_UPSTREAM]
            found[f"binary:{binary.member}"] = made_of
        return found

    def _compiled_from(self, member: str) -> list[str]:
        """Return the sources of the extension *member*, with those that are mounted in them."""
        native = self.lock.native
        if native is None:
            return []
        wanted = {name for one in native.extensions.values() if one.member == member for name in one.sources}
        wanted |= {
            name
            for name, pin in native.sources.items()
            if pin.mount.partition(":")[0] in wanted and pin.mount
        }
        return [f"source:{name}" for name in sorted(wanted)]


def _carry_reference(carry: RecordedCarry) -> str:
    return f"carry:{carry.name}"


def sha256_hash(digest: str) -> list[Any]:
    """Return the hashes of a component with that SHA-256."""
    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)]


def _properties(values: dict[str, str | None]) -> list[Any]:
    return [Property(name=_PREFIX + name, value=value) for name, value in values.items() if value]


def _repository(address: str) -> list[Any]:
    return [ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(address))] if address else []


def package_url(name: str, version: str, *, file_name: str = "") -> PackageURL:
    """Return the URL of a package on the package index, or of one file of it."""
    return PackageURL("pypi", None, name, version, {"file_name": file_name} if file_name else None)


def _git_url(address: str, ref: str) -> PackageURL:
    """Return the package URL of a git repository's *ref*."""
    if found := re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)", _web(address)):
        return PackageURL("github", found[1], found[2], ref)
    name = address.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return PackageURL("generic", None, name or "unknown", ref, {"vcs_url": f"git+{address}@{ref}"})


def _web(address: str) -> str:
    """Return the address of a repository's pages on the web; empty for one that is no https address."""
    return address.rstrip("/").removesuffix(".git") if address.startswith("https://") else ""
