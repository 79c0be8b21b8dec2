"""Resolve the two ends of a bisection: a wheel, a commit of this project, a release, a commit of upstream's.

A wheel names its pin by digests and its carries by content ids. Both are looked up in the checkout and in
the history of its repository, and what was found is only used if its digest is the one that the wheel states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import BisectionError, ConfigError, SparkwrightError, WheelError
from sparkwright.carries import Carry, load_carry
from sparkwright.carries.patchset import BuildSpec, check_order
from sparkwright.git import Repository, check_out
from sparkwright.lock import Lock, read_lock
from sparkwright.lock.model import LOCK_NAME
from sparkwright.pipeline.checkout import Checkout, lock_name, open_checkout, series_names
from sparkwright.search.points import RecordedSpec, ResolvedSpec, UpstreamPoint
from sparkwright.store import storing
from sparkwright.upstream import Access
from sparkwright.wheel import WheelName
from sparkwright.wheel.archive import Archive

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_STATED = re.compile(r"[^/]+\.dist-info/WHEEL")
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)+(?:\.post\d+)?)")
_FULL_ID = 40
_MOST_BYTES = 2 << 30
"""Of a wheel by address, of which nothing states the size."""
_NEXT = (
    "give a wheel, a commit of this project, SERIES@RELEASE, PATCHSET@RELEASE, a commit of upstream's, or '.'"
)


@dataclass(frozen=True)
class Resolver:
    """Resolves SPECs against one checkout.

    Attributes:
        checkout: the clone of the project.
        access: the store and the network settings.
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
    _trees: dict[str, Carry | None] = field(default_factory=dict, repr=False)

    def resolve(self, text: str) -> ResolvedSpec:
        """Return the end that *text* names; the work tree of the checkout is never written to.

        Raises:
            BisectionError: it names nothing, or what it names cannot be had.
        """
        if text.split("?", maxsplit=1)[0].endswith(".whl"):
            return self._wheel(text)
        if text == ".":
            return self._checkout(text, self.checkout, self.patchset)
        patchset, at, target = text.rpartition("@")
        if not at and (commit := self._own_commit(text)) is not None:
            return self._checkout(text, self._at(commit), self.patchset)
        return self._upstream(text, patchset or self.patchset, target)

    # A commit of this project, and its work tree.

    @property
    def _history(self) -> Repository | None:
        """The repository of the checkout; `None` for an unpacked archive."""
        git = self.checkout.root / ".git"
        return Repository(git) if git.exists() else None

    def _own_commit(self, text: str) -> str | None:
        history = self._history
        if history is None or text.startswith("-"):
            return None
        found = history.command(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}", accept=(0, 1, 128)
        )
        return found.text if found.status == 0 else None

    def _at(self, commit: str) -> Checkout:
        folder = self.scratch / commit
        history = self._history
        if not folder.exists() and history is not None:
            check_out(history, history.tree_of(commit), folder)
        if not (folder / LOCK_NAME).is_file():
            raise BisectionError(
                f"commit {commit[:12]} of this repository is no build spec",
                because=f"it has no {LOCK_NAME}",
                next_step=_NEXT,
            )
        return open_checkout(folder, self.series, self.patchset)

    def _checkout(self, text: str, checkout: Checkout, patchset: str) -> ResolvedSpec:
        spec = checkout.build_spec(patchset, arch=self.arch)
        return ResolvedSpec(
            text, spec.patchset, UpstreamPoint(spec.lock.release.version), spec.deciding, spec.lock, self.arch
        )

    # A release or a commit of upstream's with a patchset.

    def _upstream(self, text: str, patchset: str, target: str) -> ResolvedSpec:
        checkout = self.checkout.of(patchset)
        own = checkout.lock.release
        if (found := _RELEASE.fullmatch(target)) is not None:
            point = UpstreamPoint(found[1])
        elif _COMMIT.fullmatch(target):
            point = UpstreamPoint(own.version, self._full_commit(text, target))
        else:
            raise BisectionError(f"{text!r} names no build spec", next_step=_NEXT)
        pinned = point.version == own.version and not point.commit
        spec = checkout.build_spec(patchset, arch=self.arch)
        return ResolvedSpec(
            text, spec.patchset, point, spec.deciding, checkout.lock if pinned else None, self.arch
        )

    def _full_commit(self, text: str, abbreviated: str) -> str:
        """Return the full id of a commit of upstream's; one that the store lacks has to be given in full."""
        if len(abbreviated) == _FULL_ID:
            return abbreviated
        done = self.access.repository.command(
            "rev-parse", "--verify", "--quiet", f"{abbreviated}^{{commit}}", accept=(0, 1, 128)
        )
        if done.status:
            raise BisectionError(
                f"{text!r} names no build spec",
                because=f"neither this repository nor the store has a commit {abbreviated}",
                next_step="give upstream's commit with all of its 40 digits",
            )
        return done.text

    # A wheel.

    def _wheel(self, text: str) -> ResolvedSpec:
        from sparkwright.wheel.archive import open_archive
        from sparkwright.wheel.recorded import POINT, RECORD_FOLDER
        from sparkwright.wheel.stamp import header

        path = self._local(text)
        with open_archive(path) as archive:
            name = _wheel_name(path.name, archive)
            requires = tuple(sorted(header(archive.read(f"{name.dist_info}/METADATA"), "Requires-Dist")))
            member = f"{name.dist_info}/{RECORD_FOLDER}/{POINT}"
            if member not in archive.members:
                return self._stock_wheel(text, name, requires)
            try:
                recorded = decode_json(archive.read(member), RecordedSpec)
            except msgspec.MsgspecError as error:
                raise BisectionError(
                    f"the build spec of {path.name} cannot be read", because=f"{member}: {error}"
                ) from error
        return self._recorded(text, path.name, recorded, requires)

    def _local(self, text: str) -> Path:
        parts = urlsplit(text)
        if parts.scheme == "file":
            text = unquote(parts.path)
        elif parts.scheme in {"http", "https"}:
            return self._download(text, Path(unquote(parts.path)).name)
        path = Path(text).absolute()
        if not path.is_file():
            raise BisectionError(f"there is no wheel {text}", next_step=_NEXT)
        return path

    def _download(self, url: str, filename: str) -> Path:
        from sparkwright.upstream.network import fetch_failed, open_session, retrying

        settings = self.access.settings
        if settings.offline:
            raise BisectionError(
                f"{filename} cannot be fetched",
                because="the network is off",
                next_step="give the file itself",
            )
        target = self.scratch / filename

        def fetch() -> None:
            with session.get(url, timeout=settings.timeout_s, stream=True) as response:
                response.raise_for_status()
                with storing(f"writing {filename}"), target.open("wb") as sink:
                    for piece in response.iter_content(1 << 20):
                        sink.write(piece)
                        if sink.tell() > _MOST_BYTES:
                            raise BisectionError(
                                f"{filename} was not fetched",
                                because=f"it has more than {_MOST_BYTES >> 30} GiB, which no wheel has",
                                next_step="give the file itself",
                            )

        with open_session(settings) as session:
            try:
                retrying(settings, f"download {filename}")(fetch)
            except SparkwrightError:
                raise
            except Exception as error:
                raise fetch_failed(filename, error) from error
        return target

    def _stock_wheel(self, text: str, name: WheelName, requires: tuple[str, ...]) -> ResolvedSpec:
        """Return the end that an upstream wheel is: its release without carries."""
        version = name.version
        if not _RELEASE.fullmatch(version):
            raise BisectionError(
                f"{text} states no build spec",
                because="it was not made by sparkwright, and its version is no release of upstream's",
                next_step=_NEXT,
            )
        lock = next((one for one in self.checkout.locks() if one.release.version == version), None)
        return ResolvedSpec(text, "", UpstreamPoint(version), (), lock, None, requires, platform=name.machine)

    def _recorded(
        self, text: str, filename: str, recorded: RecordedSpec, requires: tuple[str, ...]
    ) -> ResolvedSpec:
        described = recorded.point
        lock = self._lock_of(filename, described.pin)
        carries = tuple(
            self._carry(filename, carry.name, carry.content, lock.release.version)
            for carry in described.carries
        )
        arch = described.kernels.arch if described.kernels is not None else None
        spec = BuildSpec(lock, described.patchset, carries, arch)
        if spec.digest != recorded.digest:
            raise BisectionError(
                f"the build spec of {filename} cannot be made again",
                because=f"what was found for it has the digest {spec.digest[:12]}, and the wheel states "
                f"{recorded.digest[:12]}: the pin's [native] tables differ, or the record's format does",
                next_step="give the commit of this project that it was built from",
            )
        check_order(carries, {carry.name: carry for carry in carries})
        return ResolvedSpec(
            text,
            described.patchset,
            UpstreamPoint(lock.release.version),
            carries,
            lock,
            arch,
            requires,
            recorded.merge.merged,
            recorded.platform,
        )

    def _lock_of(self, filename: str, pin: dict[str, Any]) -> Lock:
        """Return the lock with the digests of *pin*: the checkout's, one of its history, or one made now."""
        target = str(pin.get("version" if pin.get("sdist") else "commit"))
        for lock in self._locks():
            if _digests(lock) == pin:
                return lock
        try:
            made = pinned_lock(self.checkout, self.access, target)
        except SparkwrightError as error:
            raise BisectionError(
                f"the pin of {filename} is unknown here",
                because=f"no {LOCK_NAME} of this repository's history has the digests that it states for "
                f"{target}, and none could be made: {error}",
                next_step="fetch the history of this repository, or give the commit that it was built from",
            ) from error
        if _digests(made) != pin:
            raise BisectionError(
                f"the pin of {filename} is unknown here",
                because=f"upstream's files of {target} have other digests than it states",
            )
        return made

    def _locks(self) -> Iterator[Lock]:
        yield from self.checkout.locks()
        history = self._history
        if history is None:
            return
        names = (LOCK_NAME, *(lock_name(series) for series in series_names(self.checkout.root)))
        texts = (text for name in names for text in _past_files(history, name))
        for number, text in enumerate(texts):
            past = self.scratch / f"{number}-{LOCK_NAME}"
            past.write_bytes(text)
            try:
                yield read_lock(past)
            except ConfigError:
                continue  # of a format that this version does not read

    def _carry(self, filename: str, name: str, content: str, version: str) -> Carry:
        """Return the carry *name* whose content has that id: the present one, or one of the history."""
        for carry in self._states_of(name):
            try:
                if carry.content_id(version) == content:
                    return carry
            except SparkwrightError:
                continue
        raise BisectionError(
            f"carry {name} of {filename} cannot be had",
            because=f"neither {self.checkout.carries / name} nor its history has the content {content[:12]}",
            next_step="fetch the commit that the wheel was built from into this clone"
            f" (git fetch --unshallow, where it is a shallow one); the content's whole id is {content}",
        )

    def _states_of(self, name: str) -> Iterator[Carry]:
        """Yield every state of the carry *name*, the present one first, then from the newest on."""
        if (self.checkout.carries / name / "carry.toml").is_file():
            yield load_carry(self.checkout.carries / name)
        history = self._history
        if history is None:
            return
        path = f"carries/{name}"
        for tree in _past_objects(history, path, kind="tree"):
            if tree not in self._trees:
                self._trees[tree] = self._past_carry(history, tree, name)
            if (carry := self._trees[tree]) is not None:
                yield carry

    def _past_carry(self, history: Repository, tree: str, name: str) -> Carry | None:
        folder = self.scratch / "carries" / tree / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        check_out(history, tree, folder)
        try:
            return load_carry(folder)
        except ConfigError:
            return None  # of a format that this version does not read


def pinned_lock(checkout: Checkout, access: Access, target: str, *, source: str = "git") -> Lock:
    """Return the lock of the release or commit *target*: the checkout's if it pins that, or a new one."""
    release = checkout.lock.release
    if target in {release.version, release.commit}:
        return checkout.lock
    from sparkwright.pipeline.pins import pin_of

    return pin_of(checkout, access, target, source=source)


def _wheel_name(filename: str, archive: Archive) -> WheelName:
    """Return the parts of the wheel's name; of a file that was renamed, those that its contents state.

    Raises:
        WheelError: neither states them.
    """
    from sparkwright.wheel.names import parse_name
    from sparkwright.wheel.stamp import header

    try:
        return parse_name(filename)
    except WheelError:
        found = [member for member in archive.members if _STATED.fullmatch(member)]
        tags = header(archive.read(found[0]), "Tag") if len(found) == 1 else ()
        if not tags:
            raise
        return parse_name(f"{found[0].partition('.dist-info/')[0]}-{tags[0]}.whl")


def _digests(lock: Lock) -> dict[str, Any]:
    """Return what the record of a wheel says of its pin."""
    pin: dict[str, Any] = BuildSpec(lock, "", ()).describe()["pin"]
    return pin


def _past_objects(history: Repository, path: str, *, kind: str) -> list[str]:
    """Return ids of the objects of that *kind* that *path* was on any ref, from the newest commit on."""
    commits = history.command("log", "--all", "--full-history", "--format=%H", "--", path).text.split()
    asked = "".join(f"{commit}:{path}\n" for commit in commits).encode()
    found = history.command("cat-file", "--batch-check=%(objecttype) %(objectname)", stdin=asked)
    answers = [line.split() for line in found.text.splitlines()]
    return list(dict.fromkeys(answer[1] for answer in answers if answer[0] == kind))


def _past_files(history: Repository, path: str) -> Iterator[bytes]:
    for blob in _past_objects(history, path, kind="blob"):
        yield history.command("cat-file", "blob", blob).stdout
