"""Resolve the two ends of a bisection: a wheel, a commit of this project, a release, a commit of upstream's.

A wheel names its pin by digests and its carries by content ids. The pin is looked up in the checkout, and
made from upstream's files else; carries are in the checkout or in the history of its repository. What was
found is only used if its digest is the one that the wheel states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BisectionError, SparkwrightError, WheelError
from sparkwright.carries.model import Carry, Name, load_carry
from sparkwright.carries.patchset import BuildSpec, check_order
from sparkwright.git.repository import Repository
from sparkwright.git.trees import check_out
from sparkwright.lock.model import LOCK_NAME, Lock
from sparkwright.pipeline.checkout import Checkout, open_checkout
from sparkwright.upstream.releases import Access
from sparkwright.wheel.names import WheelName

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_STATED = re.compile(r"[^/]+\.dist-info/WHEEL")
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)+(?:\.post\d+)?)")
_FULL_ID = 40
_NEXT = (
    "give a wheel, a commit of this project, SERIES@RELEASE, PATCHSET@RELEASE, a commit of upstream's, or '.'"
)


@dataclass(frozen=True)
class UpstreamPoint:
    """A point of upstream's line.

    Attributes:
        version: the release, or the one that decides for a commit which revision of a carry is taken.
        commit: the full id of a commit; empty for the release itself.
        tree: the id of its tree, where it is known already.
    """

    version: str
    commit: str = ""
    tree: str = field(default="", compare=False)

    @property
    def label(self) -> str:
        """Return its short name."""
        return self.commit[:12] or self.version


@dataclass(frozen=True)
class ResolvedSpec:
    """An end of a bisection, or a candidate between two ends.

    Attributes:
        text: the SPEC, as it was given; empty for a candidate.
        lock: the pin with all of its digests; `None` if only the tree is known so far.
        arch: architecture of native kernels; `None` where upstream's are taken.
        platform: the machine that a wheel is for; empty for other specs.
    """

    text: str
    patchset: str
    point: UpstreamPoint
    carries: tuple[Carry, ...]
    lock: Lock | None = None
    arch: str | None = None
    platform: str = ""

    @property
    def digest(self) -> str:
        """Return its name: candidates with one digest are built from the same inputs."""
        version = self.point.version
        return digest_of(
            {
                "version": version,
                "commit": self.point.commit,
                "carries": [{"name": one.name, "content": one.content_id(version)} for one in self.carries],
                "arch": self.arch,
                "pinned": self.lock.release.commit if self.lock else "",
            }
        )

    def describe(self) -> str:
        """Return it in words."""
        kernels = f", kernels for {self.arch}" if self.arch else ""
        names = ", ".join(carry.name for carry in self.carries)
        return f"vllm {self.point.label}{kernels} with {names or 'no carry'}"


# Names are joined to paths and looked up in the history: a stranger's wheel may name any.
class _Content(msgspec.Struct, frozen=True):
    name: Name
    content: str


class _Described(msgspec.Struct, frozen=True):
    pin: dict[str, Any]
    patchset: Name
    carries: tuple[_Content, ...]
    kernels: dict[str, Any] = {}


class _Recorded(msgspec.Struct, frozen=True):
    """The build spec as ``point.json`` of a wheel records it."""

    digest: str
    platform: str
    point: _Described


@dataclass(frozen=True)
class Resolver:
    """Resolves SPECs against one checkout.

    Attributes:
        scratch: folder that takes files of earlier commits; it must outlive the results.
        series: the series of commits of this project; each one's default if it is empty.
        patchset: the patchset of a SPEC that names none; the series' own if it is empty.
        arch: architecture of native kernels for a SPEC that is no wheel; `None` for upstream's.
    """

    checkout: Checkout
    access: Access
    scratch: Path
    series: str
    patchset: str
    arch: str | None = None

    def resolve(self, text: str) -> ResolvedSpec:
        """Return the end that *text* names; the work tree of the checkout is never written to."""
        if text.endswith(".whl"):
            return self._wheel(text)
        if text == ".":
            return self._of(text, self.checkout, self.patchset)
        patchset, at, target = text.rpartition("@")
        history = self._history
        if not at and history is not None and (commit := history.find(f"{text}^{{commit}}")):
            folder = self.scratch / commit
            if not folder.exists():
                check_out(history, history.tree_of(commit), folder)
            if not (folder / LOCK_NAME).is_file():
                raise BisectionError(
                    f"commit {commit[:12]} of this repository is no build spec",
                    because=f"it has no {LOCK_NAME}",
                    next_step=_NEXT,
                )
            return self._of(text, open_checkout(folder, self.series, self.patchset), self.patchset)
        return self._upstream(text, patchset or self.patchset, target)

    @property
    def _history(self) -> Repository | None:
        """The repository of the checkout; `None` for an unpacked archive."""
        git = self.checkout.root / ".git"
        return Repository(git) if git.exists() else None

    def _of(
        self, text: str, checkout: Checkout, patchset: str, point: UpstreamPoint | None = None
    ) -> ResolvedSpec:
        """Return a patchset of *checkout* on its own pin, or on another *point*."""
        spec = checkout.build_spec(patchset, arch=self.arch)
        own = UpstreamPoint(spec.lock.release.version)
        lock = spec.lock if point in {None, own} else None
        return ResolvedSpec(text, spec.patchset, point or own, spec.deciding, lock, self.arch)

    def _upstream(self, text: str, patchset: str, target: str) -> ResolvedSpec:
        """Return a patchset on a release or a commit of upstream's."""
        checkout = self.checkout.of(patchset)
        if (found := _RELEASE.fullmatch(target)) is not None:
            return self._of(text, checkout, patchset, UpstreamPoint(found[1]))
        if not _COMMIT.fullmatch(target):
            raise BisectionError(f"{text!r} names no build spec", next_step=_NEXT)
        commit = target if len(target) == _FULL_ID else self.access.repository.find(f"{target}^{{commit}}")
        if not commit:
            raise BisectionError(
                f"{text!r} names no build spec",
                because=f"neither this repository nor the store has a commit {target}",
                next_step="give upstream's commit with all of its 40 digits",
            )
        return self._of(text, checkout, patchset, UpstreamPoint(checkout.lock.release.version, commit))

    # A wheel.

    def _wheel(self, text: str) -> ResolvedSpec:
        from sparkwright.wheel.archive import open_archive
        from sparkwright.wheel.names import header, parse_name
        from sparkwright.wheel.recorded import POINT, RECORD_FOLDER

        path = Path(text).absolute()
        if not path.is_file():
            raise BisectionError(f"there is no wheel {text}", next_step=_NEXT)
        with open_archive(path) as archive:
            try:
                name = parse_name(path.name)
            except WheelError:  # of a file that was renamed, what its contents state
                found = [member for member in archive.members if _STATED.fullmatch(member)]
                tags = header(archive.read(found[0]), "Tag") if len(found) == 1 else ()
                if not tags:
                    raise
                name = parse_name(f"{found[0].partition('.dist-info/')[0]}-{tags[0]}.whl")
            member = f"{name.dist_info}/{RECORD_FOLDER}/{POINT}"
            if member not in archive.members:
                return self._stock_wheel(text, name)
            try:
                recorded = decode_json(archive.read(member), _Recorded)
            except msgspec.MsgspecError as error:
                raise BisectionError(
                    f"the build spec of {path.name} cannot be read", because=f"{member}: {error}"
                ) from error
        return self._recorded(text, path.name, recorded)

    def _stock_wheel(self, text: str, name: WheelName) -> ResolvedSpec:
        """Return the end that an upstream wheel is: its release without carries."""
        version = name.version
        if not _RELEASE.fullmatch(version):
            raise BisectionError(
                f"{text} states no build spec",
                because="it was not made by sparkwright, and its version is no release of upstream's",
                next_step=_NEXT,
            )
        lock = next((one for one in self.checkout.locks() if one.release.version == version), None)
        return ResolvedSpec(text, "", UpstreamPoint(version), (), lock, platform=name.machine)

    def _recorded(self, text: str, filename: str, recorded: _Recorded) -> ResolvedSpec:
        described = recorded.point
        lock = self._lock_of(filename, described.pin)
        version = lock.release.version
        carries = tuple(self._carry(filename, one.name, one.content, version) for one in described.carries)
        arch = described.kernels.get("arch")
        spec = BuildSpec(lock, described.patchset, carries, arch)
        if spec.digest != recorded.digest:
            raise BisectionError(
                f"the build spec of {filename} cannot be made again",
                because=f"what was found for it has the digest {spec.digest[:12]}, and the wheel states "
                f"{recorded.digest[:12]}: the pin's [native] tables differ, or the record's format does",
                next_step="give the commit of this project that it was built from",
            )
        check_order(carries, {carry.name: carry for carry in carries})
        point = UpstreamPoint(version)
        return ResolvedSpec(text, described.patchset, point, carries, lock, arch, recorded.platform)

    def _lock_of(self, filename: str, pin: dict[str, Any]) -> Lock:
        """Return the lock with the digests of *pin*: the checkout's, or one made now."""
        target = str(pin.get("version" if pin.get("sdist") else "commit"))
        for lock in self.checkout.locks():
            if _pin_of(lock) == pin:
                return lock
        try:
            made = pinned_lock(self.checkout, self.access, target)
        except SparkwrightError as error:
            raise BisectionError(
                f"the pin of {filename} is unknown here",
                because=f"no lock here has the digests that it states for {target}, and none could be made: "
                f"{error}",
                next_step="give the commit of this project that it was built from",
            ) from error
        if _pin_of(made) != pin:
            raise BisectionError(
                f"the pin of {filename} is unknown here",
                because=f"upstream's files of {target} have other digests than it states",
            )
        return made

    def _carry(self, filename: str, name: str, content: str, version: str) -> Carry:
        """Return the carry *name* whose content has that id: the present one, or one of the history."""
        for folder in self._folders_of(name):
            try:
                if (carry := load_carry(folder)).content_id(version) == content:
                    return carry
            except SparkwrightError:
                continue  # of a format that this version does not read
        raise BisectionError(
            f"carry {name} of {filename} cannot be had",
            because=f"neither {self.checkout.carries / name} nor its history has the content {content[:12]}",
            next_step="fetch the commit that the wheel was built from into this clone"
            f" (git fetch --unshallow, where it is a shallow one); the content's whole id is {content}",
        )

    def _folders_of(self, name: str) -> Iterator[Path]:
        """Yield folders with every state of the carry *name*, the present one first, then from the newest."""
        if (self.checkout.carries / name / "carry.toml").is_file():
            yield self.checkout.carries / name
        for history, tree in self._past(f"carries/{name}"):
            folder = self.scratch / "carries" / tree / name
            if not folder.exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                check_out(history, tree, folder)
            yield folder

    def _past(self, path: str) -> Iterator[tuple[Repository, str]]:
        """Yield ids of the folders that *path* was on any ref, from the newest commit on."""
        history = self._history
        if history is None:
            return
        commits = history.command("log", "--all", "--full-history", "--format=%H", "--", path).text.split()
        asked = "".join(f"{commit}:{path}\n" for commit in commits).encode()
        found = history.command("cat-file", "--batch-check=%(objecttype) %(objectname)", stdin=asked)
        answers = [line.split() for line in found.text.splitlines()]
        yield from ((history, one) for one in dict.fromkeys(ids[1] for ids in answers if ids[0] == "tree"))


def pinned_lock(checkout: Checkout, access: Access, target: str, *, source: str = "git") -> Lock:
    """Return the lock of the release or commit *target*: the checkout's if it pins that, or a new one."""
    release = checkout.lock.release
    if target in {release.version, release.commit}:
        return checkout.lock
    from sparkwright.pipeline.pins import pin_of

    return pin_of(checkout, access, target, source=source)


def _pin_of(lock: Lock) -> dict[str, Any]:
    """Return what the record of a wheel says of its pin."""
    pin: dict[str, Any] = BuildSpec(lock, "", ()).describe()["pin"]
    return pin
