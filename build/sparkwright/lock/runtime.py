"""The locked runtime: every package that a series' wheel runs with on one machine, by version and digests.

The file has the format of pip's requirements, so that pip and uv install by it; it names no index. It is made
of a resolution in the format of PEP 751, of which only the files that fit the machine are kept.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import ConfigError, LockMismatchError

SUFFIX = ".requirements.txt"
OLDEST_PYTHON = "3.11"
"""The oldest Python that a runtime is resolved for; later ones are in the same file, by markers."""
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_OLDEST = (3, 11)
_ALWAYS = {
    "sys_platform == 'linux'",
    "implementation_name == 'cpython'",
    "platform_python_implementation != 'PyPy'",
}
_HEAD = """\
# The runtime of vLLM {release} on {machine}, locked: `sparkwright lock runtime` makes it again.
"""
_OVERRIDE, _WITH = "# override: ", "# with: "
_AFTER = "make it again: sparkwright lock runtime"


@dataclass(frozen=True)
class LockedPackage:
    """One package of a runtime.

    Attributes:
        marker: the marker that it is installed by; empty for always.
        hashes: SHA-256 of the files that fit the machine, sorted.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def line(self) -> str:
        """The requirement as pip reads it."""
        marker = f" ; {self.marker}" if self.marker else ""
        return f"{self.name}=={self.version}{marker} " + " ".join(
            f"--hash=sha256:{sha256}" for sha256 in self.hashes
        )


@dataclass(frozen=True)
class LockedRuntime:
    """All packages of a runtime.

    Attributes:
        overrides: requirements that count instead of those of the same project, wherever they are stated.
        extras: requirements on top of the wheel's own.
    """

    packages: tuple[LockedPackage, ...]
    overrides: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The packages as pip's requirements, one a line."""
        return "".join(f"{package.line}\n" for package in self.packages)

    @property
    def dependencies(self) -> LockedRuntime:
        """The runtime without vLLM itself, which the file beside a wheel names too."""
        return replace(self, packages=tuple(one for one in self.packages if one.name != "vllm"))

    @property
    def digest(self) -> str:
        """The digest of the dependencies, whatever comments stand beside them."""
        return sha256_bytes(self.dependencies.text.encode())

    def missing(self, requirements: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return those of *requirements* that the runtime does not meet in *environment*."""
        given = {**environment, "extra": ""}
        instead = {canonicalize_name(Requirement(one).name): Requirement(one) for one in self.overrides}
        versions = {
            package.name: Version(package.version)
            for package in self.packages
            if not package.marker or Marker(package.marker).evaluate(given)
        }
        found = []
        for text in requirements:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate(given):
                continue
            name = canonicalize_name(requirement.name)
            version, wanted = versions.get(name), instead.get(name, requirement).specifier
            if version is None or not wanted.contains(version, prereleases=True):
                found.append(text)
        return tuple(found)


def beside(wheel: Path) -> Path:
    """Return the file beside *wheel* that holds its locked runtime, where it was published with one."""
    return wheel.with_name(f"{wheel.name.removesuffix('.whl')}{SUFFIX}")


def runtime_name(series: str, machine: str) -> str:
    """Return the name of the file with the runtime of *series* on *machine*, beside the series' patchset."""
    return f"{series}-{machine}{SUFFIX}"


def joined_requirements(recorded: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return what a file records and what is *given*, which replaces those of the same project."""
    replaced = {canonicalize_name(Requirement(one).name) for one in given}
    return (*(one for one in recorded if canonicalize_name(Requirement(one).name) not in replaced), *given)


def format_runtime(runtime: LockedRuntime, *, release: str, machine: str) -> str:
    """Return the file with *runtime*."""
    stated = [f"{_OVERRIDE}{one}\n" for one in runtime.overrides] + [
        f"{_WITH}{one}\n" for one in runtime.extras
    ]
    return _HEAD.format(release=release, machine=machine) + "".join(stated) + runtime.text


def read_runtime(path: Path) -> LockedRuntime:
    """Return the runtime in the file *path*."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read", because=str(error), next_step=_AFTER) from error
    return parse_runtime(text, str(path))


def parse_runtime(text: str, what: str) -> LockedRuntime:
    """Return the runtime in *text*; *what* names it in errors."""
    packages, overrides, extras = [], [], []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        if line.startswith(_OVERRIDE):
            overrides.append(line.removeprefix(_OVERRIDE).strip())
        if line.startswith(_WITH):
            extras.append(line.removeprefix(_WITH).strip())
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        packages.append(_package(line, f"{what}, line {number}"))
    if not packages:
        raise ConfigError(f"{what} is no locked runtime", because="it holds no package", next_step=_AFTER)
    return LockedRuntime(tuple(packages), tuple(overrides), tuple(extras))


def _package(line: str, where: str) -> LockedPackage:
    stated, _, _ = line.partition("--hash=")
    hashes = tuple(_HASH.findall(line))
    rest = _HASH.sub("", line[len(stated) :]).strip()
    try:
        requirement = Requirement(stated.strip())
    except ValueError as error:
        raise ConfigError(f"{where} is no requirement", because=str(error), next_step=_AFTER) from error
    pins = [one for one in requirement.specifier if one.operator == "==" and not one.version.endswith(".*")]
    if len(pins) != 1 or len(requirement.specifier) != 1 or not hashes or rest or requirement.url:
        raise ConfigError(
            f"{where} is no locked package",
            because=f"{requirement.name} has no exact version" if len(pins) != 1
            else f"{requirement.name} has no SHA-256" if not hashes
            else f"{(rest or str(requirement))[:80]!r} does not belong there",
            next_step=_AFTER,
        )  # fmt: skip
    marker = str(requirement.marker) if requirement.marker else ""
    return LockedPackage(canonicalize_name(requirement.name), pins[0].version, marker, hashes)


# From a resolution ----------------------------------------------------------------------------------------


def runtime_of(resolution: str, machine: str) -> LockedRuntime:
    """Return the runtime in a resolution in the format of PEP 751 (``pylock.toml``)."""
    packages = [_locked(entry, machine) for entry in tomllib.loads(resolution)["packages"]]
    return LockedRuntime(tuple(sorted(packages, key=lambda one: (one.name, Version(one.version)))))


def _locked(entry: Mapping[str, Any], machine: str) -> LockedPackage:
    fitting = [wheel for wheel in entry.get("wheels", ()) if _fits(_filename(wheel), machine)]
    if not fitting and "sdist" in entry:
        fitting = [entry["sdist"]]
    hashes = sorted({str(file.get("hashes", {}).get("sha256", "")) for file in fitting})
    if not hashes or not all(hashes):
        raise LockMismatchError(
            f"{entry['name']} {entry.get('version', '')} cannot be locked for {machine}",
            because="the index states no SHA-256 of it" if fitting else "it has no file for that machine",
            next_step="see which requirement of the wheel asks for it",
        )
    marker = _shortened(str(entry.get("marker", "")), machine)
    return LockedPackage(canonicalize_name(entry["name"]), str(entry["version"]), marker, tuple(hashes))


def _filename(file: Mapping[str, Any]) -> str:
    return str(file.get("name") or str(file["url"]).partition("#")[0].rpartition("/")[2])


def _fits(filename: str, machine: str) -> bool:
    """Tell if the wheel *filename* can be installed on *machine*, with Linux, glibc and CPython."""
    try:
        tags = parse_wheel_filename(filename.replace("%2B", "+"))[3]
    except InvalidWheelFilename:
        return False
    return any(_of_python(tag.interpreter, tag.abi) and _of_machine(tag.platform, machine) for tag in tags)


def _of_machine(platform: str, machine: str) -> bool:
    return platform == "any" or (platform.startswith(("manylinux", "linux")) and platform.endswith(machine))


def _of_python(interpreter: str, abi: str) -> bool:
    if interpreter in {"py3", "py2.py3"} or (abi == "none" and interpreter.startswith("py3")):
        return True
    found = re.fullmatch(r"cp3(\d+)", interpreter)
    if found is None or abi.endswith("t"):
        return False
    return abi == "abi3" or (3, int(found.group(1))) >= _OLDEST


def _shortened(marker: str, machine: str) -> str:
    """Return *marker* without the terms that hold on every Linux of *machine*; unchanged with an ``or``."""
    if not marker or " or " in marker:
        return marker
    always = {*_ALWAYS, f"platform_machine == '{machine}'"}
    return " and ".join(term for term in marker.split(" and ") if term.strip("() ") not in always)


def plain_requirements(requirements: Sequence[str]) -> tuple[str, ...]:
    """Return those of *requirements*, values of Requires-Dist, that no extra asks for."""
    found = []
    for text in requirements:
        marker = Requirement(text).marker
        if marker is None or "extra" not in str(marker):
            found.append(text)
    return tuple(found)
