"""The values that a release states about itself, each with the file that states it.

Everything here is a pure function over bytes: `ReleaseEvidence` holds the files, and `statements`
reads them. Keys are those of ``upstream.lock``, dotted.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from typing import NamedTuple

from sparkwright.base.config import to_builtins
from sparkwright.lock.cmake import is_cmake_file, read_pins
from sparkwright.lock.model import Artifact

VERSION_FILE = "vllm/_version.py"
_REQUIREMENTS = ("requirements/cuda.txt", "requirements/build/cuda.txt")
_MACHINES = ("aarch64", "x86_64")


@dataclass(frozen=True)
class WheelEvidence:
    """The files of a wheel that state values of the lock.

    Attributes:
        file: its name, digest and size, as found.
    """

    file: Artifact
    metadata: bytes
    wheel: bytes
    version_file: bytes


@dataclass(frozen=True)
class ReleaseEvidence:
    """The files of a release that state values of the lock.

    Attributes:
        texts: the files of the sdist or the commit for which `is_evidence` holds, by path.
        tree: the same files at the pinned commit; `None` without a git remote.
        tag_commit: the commit of the release's tag there; `None` without a git remote.
        commit: full id of the commit of *tree*, or of the pinned commit.
        tree_id: git id of the pinned commit's tree; `None` with an sdist.
        version: version of the pinned commit, where no wheel of its own states it.
    """

    sdist: Artifact | None
    texts: Mapping[str, bytes]
    wheels: tuple[WheelEvidence, ...] = ()
    tree: Mapping[str, bytes] | None = None
    tag_commit: str | None = None
    commit: str | None = None
    tree_id: str | None = None
    version: str | None = None

    @property
    def name(self) -> str:
        """The name of what has `texts`, for people."""
        return self.sdist.filename if self.sdist else f"commit {(self.commit or '')[:12]}"


class Statement(NamedTuple):
    """The value that one file states for one key of the lock.

    Attributes:
        value: what the file states; `None` if it does not, and should.
        witness: the file, and the reason where it states nothing.
    """

    key: str
    value: str | None
    witness: str


def is_evidence(path: str) -> bool:
    """Tell if the file at *path* in upstream's tree states a value that the lock repeats."""
    return path in {"PKG-INFO", "pyproject.toml", VERSION_FILE, *_REQUIREMENTS} or is_cmake_file(path)


def statements(evidence: ReleaseEvidence) -> Iterator[Statement]:
    """Yield every value that *evidence* states for a key of the lock."""
    if evidence.sdist is not None:
        yield from _file("sdist", evidence.sdist)
        yield from _sdist(evidence.sdist.filename, evidence.texts)
    else:
        yield Statement("release.tree", evidence.tree_id, evidence.name)
        if evidence.version is not None:
            yield Statement("release.version", evidence.version, f"{evidence.name}, counted from its wheel's")
        yield from _commit(evidence.name, evidence.texts)
    sdist_commit = stated_commit(evidence.texts.get(VERSION_FILE, b""))
    for wheel in evidence.wheels:
        yield from _wheel(wheel, sdist_commit, own=wheel.file.commit in {None, evidence.commit})
    yield from _sources(evidence.texts)
    if evidence.tag_commit is not None:
        yield Statement("release.commit", evidence.tag_commit, "the release's tag at the git remote")
    if evidence.commit is not None:
        yield Statement("release.commit", evidence.commit, "the repository that has it")
    if evidence.tree is not None:
        yield from _tree(evidence.texts, evidence.tree)


def machine_of(platform_tag: str) -> str:
    """Return the machine in a wheel's platform tag: ``aarch64`` of ``manylinux_2_28_aarch64``."""
    return next((name for name in _MACHINES if platform_tag.endswith("_" + name)), platform_tag)


def _file(key: str, file: Artifact) -> Iterator[Statement]:
    for name, value in to_builtins(file).items():
        yield Statement(f"{key}.{name}", str(value), f"the file {file.filename}")


def _sdist(filename: str, texts: Mapping[str, bytes]) -> Iterator[Statement]:
    witness = f"{filename}: PKG-INFO"
    metadata = _headers(texts.get("PKG-INFO", b""))
    yield Statement("sdist.filename", f"{_project(metadata)}-{metadata.get('Version')}.tar.gz", witness)
    yield from _release(metadata, witness)
    yield Statement("release.git", _repository(metadata), witness)
    yield from _version_file(texts.get(VERSION_FILE, b""), f"{filename}: {VERSION_FILE}")
    yield from _requirements(filename, texts)


def _commit(name: str, texts: Mapping[str, bytes]) -> Iterator[Statement]:
    """Yield what a commit states: unlike an sdist it has no PKG-INFO and no version."""
    try:
        project = tomllib.loads(texts.get("pyproject.toml", b"").decode()).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        project = {}  # `_pyproject` yields the fault
    links = project.get("urls", {})
    link = links.get("Repository") or links.get("Source") or links.get("Homepage")
    yield Statement("release.git", link, f"{name}: pyproject.toml")
    yield from _requirements(name, texts)


def _requirements(filename: str, texts: Mapping[str, bytes]) -> Iterator[Statement]:
    yield from _pyproject(texts.get("pyproject.toml", b""), f"{filename}: pyproject.toml")
    for path in _REQUIREMENTS:
        if path in texts or path == _REQUIREMENTS[0]:
            lines = texts.get(path, b"").decode(errors="replace").splitlines()
            wanted = [line for line in lines if line.strip() and line.lstrip()[0] not in "#-"]
            yield from _torch(wanted, f"{filename}: {path}")


def _release(metadata: Message, witness: str, *, version: bool = True) -> Iterator[Statement]:
    if version:
        yield Statement("release.version", metadata.get("Version"), witness)
    yield Statement("release.requires-python", metadata.get("Requires-Python"), witness)


def _repository(metadata: Message) -> str | None:
    links = dict(link.split(", ", 1) for link in metadata.get_all("Project-URL", []) if ", " in link)
    return links.get("Repository") or links.get("Source") or links.get("Homepage")


def _version_file(data: bytes, witness: str) -> Iterator[Statement]:
    text = data.decode(errors="replace")
    version = re.search(r"^__version__ = version = '([^']+)'", text, re.MULTILINE)
    yield Statement("release.version", version[1] if version else None, witness)
    yield Statement("release.commit", stated_commit(data), witness)


def stated_versions(metadata: bytes, version_file: bytes) -> tuple[str, ...]:
    """Return the versions that a wheel's METADATA and its ``_version.py`` state, ``none`` for one without."""
    written = _version_file(version_file, "")
    return str(_headers(metadata).get("Version", "none")), str(next(written).value or "none").lower()


def stated_commit(version_file: bytes) -> str | None:
    """Return the abbreviated commit in a ``_version.py`` as setuptools-scm writes it, or `None`."""
    text = version_file.decode(errors="replace")
    commit = re.search(r"^__commit_id__ = commit_id = 'g([0-9a-f]{7,40})'", text, re.MULTILINE)
    return commit[1] if commit else None


def _pyproject(data: bytes, witness: str) -> Iterator[Statement]:
    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        yield Statement("release.torch", None, f"{witness}, which is not TOML ({error})")
        return
    yield Statement("release.requires-python", tables.get("project", {}).get("requires-python"), witness)
    yield from _torch(tables.get("build-system", {}).get("requires", []), witness)


def _torch(requirements: Iterable[str], witness: str) -> Iterator[Statement]:
    """Yield each exact pin of torch among *requirements* (PEP 508), without its local version."""
    from packaging.requirements import InvalidRequirement, Requirement

    pins: list[str | None] = []
    for line in requirements:
        try:
            requirement = Requirement(line.split(" #")[0].strip())
        except InvalidRequirement:
            if line.strip().startswith("torch"):
                pins.append(None)
            continue
        if requirement.name == "torch" and "extra" not in str(requirement.marker):
            exact = [each.version for each in requirement.specifier if each.operator == "=="]
            pins.append(exact[0].split("+")[0] if len(exact) == 1 == len(requirement.specifier) else None)
    for pin in pins or [None]:
        yield Statement("release.torch", pin, witness)


def _versions_of(wheel: WheelEvidence, key: str, sdist_commit: str | None) -> Iterator[Statement]:
    """Yield the version and the commit that *wheel* states.

    Upstream builds some releases' sdist and wheels from two commits. Which files these change, the audit
    finds: it holds every Python file of a wheel to the sdist's.
    """
    for one in _version_file(wheel.version_file, f"{wheel.file.filename}: {VERSION_FILE}"):
        if one.key == "release.commit" and is_other_commit(one.value, sdist_commit):
            yield Statement(f"{key}.built-from", one.value, one.witness)
        else:
            yield one


def is_other_commit(one: str | None, other: str | None) -> bool:
    """Tell if both commits are stated, abbreviated or not, and differ."""
    return bool(one and other) and not (str(one).startswith(str(other)) or str(other).startswith(str(one)))


def _wheel(wheel: WheelEvidence, sdist_commit: str | None, *, own: bool) -> Iterator[Statement]:
    """Yield what *wheel* states; one that is not the commit's *own* states no version of it."""
    filename = wheel.file.filename
    witness = f"{filename}: METADATA"
    metadata = _headers(wheel.metadata)
    tags = _headers(wheel.wheel).get_all("Tag", [])
    if len(tags) != 1 or tags[0].count("-") != 2:  # noqa: PLR2004 - python, abi and platform
        yield Statement("wheels", None, f"{filename}: WHEEL, which has not one simple tag but {tags}")
        return
    key = f"wheels.{machine_of(tags[0].split('-')[2])}"
    yield from _file(key, wheel.file)
    implied = f"{_project(metadata)}-{metadata.get('Version')}-{_outer_tag(tags[0], filename)}.whl"
    yield Statement(f"{key}.filename", implied, f"{filename}: METADATA and WHEEL")
    yield from _release(metadata, witness, version=own)
    yield from _torch(metadata.get_all("Requires-Dist", []), witness)
    if own:
        yield from _versions_of(wheel, key, sdist_commit)


def _outer_tag(tag: str, filename: str) -> str:
    """Return the tag that the name of the wheel *filename* should have, when the one inside is *tag*.

    Repairing tools rename ``linux_aarch64`` to ``manylinux_2_28_aarch64``, and upstream's leave
    the tag inside unchanged: of the platform, only the machine can be compared.
    """
    python, abi, platform = tag.split("-")
    outer = filename.removesuffix(".whl").rpartition("-")[2]
    return "-".join((python, abi, outer if machine_of(outer) == machine_of(platform) else platform))


def _project(metadata: Message) -> str:
    """Return the project's name as file names spell it (PEP 427, PEP 625)."""
    return re.sub(r"[-_.]+", "_", metadata.get("Name", "")).lower()


def _sources(texts: Mapping[str, bytes]) -> Iterator[Statement]:
    files = {path: data.decode(errors="replace") for path, data in texts.items() if is_cmake_file(path)}
    pins, problems = read_pins(files)
    for pin in pins:
        key = f"sources.{pin.name}"
        yield Statement(f"{key}.repository", pin.repository, pin.declared_in)
        yield Statement(f"{key}.ref", pin.ref, pin.declared_in)
        yield Statement(f"{key}.declared-in", pin.declared_in, pin.declared_in)
        yield Statement(f"{key}.override", pin.override, pin.declared_in)
    for problem in problems:
        yield Statement("sources", None, f"{problem.path}:{problem.line}: {problem.why}")


def _tree(texts: Mapping[str, bytes], tree: Mapping[str, bytes]) -> Iterator[Statement]:
    """Yield the differences of the pinned commit and the sdist, except its two generated files."""
    for path in sorted(texts.keys() | tree.keys()):
        if path not in {"PKG-INFO", VERSION_FILE} and texts.get(path) != tree.get(path):
            yield Statement(
                "release.commit", None, f"{path}, which differs between that commit and the sdist"
            )


def _headers(data: bytes) -> Message:
    return BytesHeaderParser().parsebytes(data)
