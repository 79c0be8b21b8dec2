"""Patchsets and build specs: carries, in order, on a pin.

A build spec's digest names everything that is made from it. It covers what decides the result
(the pin's digests, each carry's content, the order) and no prose. Where kernels are compiled, it
covers what they are compiled for and from; where they come from upstream's wheel, carries that
change how they are compiled decide nothing and are left out.

Digests have no order, so a patchset counts its revisions too: each belongs to one digest of the pin and
all carries, and what differs from the newest one is a working state, which has no revision yet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from sparkwright.base.config import Model, load_toml, parse_toml, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError, DependencyOrderError, unknown_name
from sparkwright.carries.model import Carry, Name, load_carries
from sparkwright.lock.model import Lock, NativePin, SeriesName

# The policy of channels lies beside the patchsets.
_POLICY = "channels"
PATCHSET_FORMAT = 1
_NOT_COMPILED = "it changes how kernels are compiled; kernels come from upstream's wheel"


class Released(Model, frozen=True):
    """The newest revision of a patchset.

    Attributes:
        revision: its number; it becomes part of the wheel's version and orders builds of one release.
        digest: `BuildSpec.content` of what it was given to.
    """

    revision: Annotated[int, Meta(ge=1)]
    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Patchset(Model, frozen=True, kw_only=True):
    """A ``patchsets/*.toml``.

    Attributes:
        name: its name; it becomes part of the wheel's version. It is the file's too, but for a series' own.
        series: the series that it is the patchset of, which the file is called by; empty for any other.
    """

    format: int
    name: Name
    series: SeriesName = ""
    summary: Annotated[str, Meta(min_length=1)]
    carries: tuple[Name, ...]
    released: Released | None = None


@dataclass(frozen=True)
class BuildSpec:
    """A pin and a patchset, resolved.

    Attributes:
        arch: what kernels are compiled for, such as ``12.1a``; `None` where upstream's are taken.
        released: the patchset's newest revision, whether this is it or not.
        file: name of the patchset's file, by which commands select it.
    """

    lock: Lock
    patchset: str
    carries: tuple[Carry, ...]
    arch: str | None = None
    released: Released | None = None
    file: str = ""

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Return carries that decide nothing here, by name, and why."""
        found: dict[str, str] = {}
        for carry in self.carries if self.arch is None else ():
            if carry.spec.scope == "build":
                found[carry.name] = _NOT_COMPILED
            elif missing := [name for name in carry.spec.requires if name in found]:
                found[carry.name] = f"it requires {missing[0]}, which is left out"
        return found

    @property
    def deciding(self) -> tuple[Carry, ...]:
        """Return the carries that are not left out, in order."""
        return tuple(carry for carry in self.carries if carry.name not in self.left_out)

    @property
    def card(self) -> str:
        """Return the target of compiled kernels, ``sm121a`` for ``12.1a``; empty for upstream's kernels."""
        return "" if self.arch is None else "sm" + self.arch.replace(".", "")

    @property
    def foreign_card(self) -> str:
        """Return `card` where it is not the lock's; empty otherwise."""
        usual = self.lock.native is None or self.arch == self.lock.native.arch
        return "" if usual else self.card

    @property
    def revision(self) -> int:
        """Return the patchset's revision that this is; 0 for a working state, which has none yet."""
        if self.released is None or self.released.digest != self.content:
            return 0
        return self.released.revision

    @cached_property
    def content(self) -> str:
        """Return digest of the pin and all carries, the same whatever kernels are chosen; 64 hex digits."""
        described = self._described(self.carries)
        if self.lock.native is not None:
            described["kernels"] = _compiled_from(self.lock.native)
        return digest_of(described)

    def describe(self) -> dict[str, Any]:
        """Return what the digest covers, JSON-ready."""
        described = self._described(self.deciding)
        if self.arch is not None and self.lock.native is not None:
            described["kernels"] = {"arch": self.arch, **_compiled_from(self.lock.native)}
            if candidates := self.lock.native.candidates:
                described["kernels"]["candidates"] = {name: one.tree for name, one in candidates.items()}
        return described

    def _described(self, carries: Sequence[Carry]) -> dict[str, Any]:
        release, sdist = self.lock.release, self.lock.sdist
        others = {
            platform: wheel.commit
            for platform, wheel in self.lock.wheels.items()
            if wheel.commit not in {None, release.commit}
        }
        return {
            "format": 1,
            "pin": {
                "version": release.version,
                "commit": release.commit,
                **({"tree": release.tree} if sdist is None else {"sdist": sdist.sha256}),
                "wheels": {platform: wheel.sha256 for platform, wheel in self.lock.wheels.items()},
                **({"wheels-of": others} if others else {}),
            },
            "patchset": self.patchset,
            "carries": [
                {"name": carry.name, "content": carry.content_id(release.version)} for carry in carries
            ],
        }

    @property
    def line(self) -> str:
        """Return the name of the line of builds: the series, or ``mine@0.33`` with another patchset."""
        series = self.lock.series
        return self.file if series in {"", self.file} else f"{self.file}@{series}"

    @property
    def digest(self) -> str:
        """Return the build spec's name, 64 hex digits."""
        return digest_of(self.describe())


def _compiled_from(native: NativePin) -> dict[str, Any]:
    """Return what kernels are compiled with and from; not what is expected of them or how long it takes."""
    return {
        "toolkit": digest_of(to_builtins(native.toolkit)),
        "sources": {name: source.tree or source.ref for name, source in native.sources.items()},
        "extensions": digest_of(to_builtins(native.extensions)),
    }


def patchset_names(folder: Path) -> list[str]:
    """Return the names of the patchsets in *folder*, where the channels' policies lie beside them."""
    return sorted(found.stem for found in folder.glob("*.toml") if found.stem != _POLICY)


def load_patchset(folder: Path, name: str) -> Patchset:
    """Return the patchset in *folder* whose file is called *name*."""
    path = folder / f"{name}.toml"
    known = patchset_names(folder)
    if name not in known:
        raise unknown_name("patchset", name, known)
    patchset = load_toml(path, Patchset, newest_format=PATCHSET_FORMAT)
    if (patchset.series or patchset.name) != name:
        key = "series" if patchset.series else "name"
        raise ConfigError(
            f"{path} does not fit together",
            because=f"it has {key} = {patchset.series or patchset.name!r} inside",
        )
    if len(set(patchset.carries)) != len(patchset.carries):
        raise ConfigError(f"{path} does not fit together", because="it names a carry twice")
    return patchset


def make_build_spec(root: Path, lock: Lock, patchset: str, *, arch: str | None = None) -> BuildSpec:
    """Return the build spec of *lock* and the patchset in the file *patchset*, from the checkout at *root*.

    *arch* is `None` where upstream's kernels are taken.
    """
    chosen = load_patchset(root / "patchsets", patchset)
    known = load_carries(root / "carries")
    for name in chosen.carries:
        if name not in known:
            raise unknown_name("carry", name, sorted(known))
    carries = tuple(known[name] for name in chosen.carries)
    check_order(carries, known)
    sources = sorted({*lock.sources, *(lock.native.sources if lock.native else ())})
    for carry in carries:
        if carry.spec.source is not None and carry.spec.source not in sources:
            raise unknown_name(f"source for carry {carry.name} in the lock", carry.spec.source, sources)
    if arch is not None and lock.native is None:
        raise ConfigError(
            "kernels cannot be compiled for this pin",
            because="the lock has no [native], which names the compilers",
            next_step="take upstream's: --kernels upstream",
        )
    return BuildSpec(lock, chosen.name, carries, arch, chosen.released, patchset)


def with_next_revision(text: str, point: BuildSpec) -> str:
    """Return a patchset's *text* whose newest revision is *point*; the same text if that is so already."""
    import tomlkit

    if point.revision:
        return text
    newest = Released(revision=1 + (point.released.revision if point.released else 0), digest=point.content)
    document = tomlkit.parse(text)
    if "released" not in document:
        document["released"] = tomlkit.table()
    document["released"].update(to_builtins(newest))
    written = tomlkit.dumps(document)
    read = parse_toml(written.encode(), Patchset, newest_format=PATCHSET_FORMAT, name=f"{point.file}.toml")
    if read.released != newest:
        raise ConfigError(f"{point.file}.toml could not be rewritten", because="its layout is unusual")
    return written


def with_carry(text: str, name: str, point: BuildSpec) -> str:
    """Return the patchset's *text* with the carry *name* before those of kernels; comments stay."""
    names = [carry.name for carry in point.carries]
    kernels = (number for number, carry in enumerate(point.carries) if carry.spec.scope == "build")
    place = next(kernels, len(names))
    listed = re.search(r"^carries\s*=\s*\[", text, re.MULTILINE)
    before = (
        re.compile(rf'(\s*)"{names[place - 1]}"').search(text, listed.end()) if listed and place else None
    )
    if before is not None:
        written = f'{text[: before.end()]},{before[1] or " "}"{name}"{text[before.end() :]}'
    else:
        written = re.sub(r"^(carries\s*=\s*\[)", rf'\1"{name}",', text, count=1, flags=re.MULTILINE)
    read = parse_toml(written.encode(), Patchset, newest_format=PATCHSET_FORMAT, name=f"{point.file}.toml")
    if list(read.carries) != [*names[:place], name, *names[place:]]:
        raise ConfigError(
            f"{name} could not be added to {point.file}.toml",
            because="its layout is unusual",
            next_step="add it to the carries there by hand",
        )
    return written


def check_order(carries: Sequence[Carry], known: dict[str, Carry]) -> None:
    """Check that every carry comes after what it requires."""
    _refuse_cycles(carries, known)
    seen: set[str] = set()
    names = {carry.name for carry in carries}
    for carry in carries:
        for required in carry.spec.requires:
            if required not in names:
                raise DependencyOrderError(
                    f"carry {carry.name} cannot be used alone",
                    because=f"it requires {required}",
                    next_step=f"add {required!r} to the patchset, before {carry.name!r}",
                )
            if required not in seen:
                raise DependencyOrderError(
                    f"carry {carry.name} comes too early",
                    because=f"{required}, which it requires, is listed later",
                    next_step=f"move {required!r} before {carry.name!r} in the patchset",
                )
        seen.add(carry.name)


def _refuse_cycles(carries: Sequence[Carry], known: dict[str, Carry]) -> None:
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " → ".join((*path[path.index(name) :], name))
            raise DependencyOrderError(
                "carries require each other in a circle",
                because=cycle,
                next_step="take one of these requirements out of its carry.toml",
            )
        if name in finished:
            return
        if name not in known:
            raise unknown_name("carry", name, sorted(known))
        for required in known[name].spec.requires:
            visit(required, (*path, name))
        finished.add(name)

    for carry in carries:
        visit(carry.name, ())


def closure(wanted: Collection[str], carries: Sequence[Carry]) -> tuple[Carry, ...]:
    """Return those of *carries* that are called one of *wanted*, with all that they require, in order.

    *carries* are in a valid order, each after what it requires.
    """
    names = set(wanted)
    for carry in reversed(carries):
        if carry.name in names:
            names.update(carry.spec.requires)
    return tuple(carry for carry in carries if carry.name in names)
