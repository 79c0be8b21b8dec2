"""A checkout of this project, or the package's copy of it: the lock of one series, patchsets and carries.

The lock at the top, ``upstream.lock``, names the default series. The lock of every other series lies beside
its patchset, as ``patchsets/SERIES.lock``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from sparkwright.base.errors import ConfigError, LockMismatchError, SparkwrightError, unknown_name
from sparkwright.carries.patchset import BuildSpec, load_patchset, make_build_spec, patchset_names
from sparkwright.lock.model import LOCK_NAME, PATCHSETS, SHIPPED, Lock, project_root, read_lock

# The one patchset of a checkout whose lock names no series yet.
_BEFORE_SERIES = "spark"
_HOME = "https://github.com/sparkwright/sparkwright"
_SERIES = re.compile(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class Checkout:
    """The folder that holds ``upstream.lock``, ``patchsets/`` and ``carries/``, seen by one series."""

    root: Path
    lock: Lock
    lock_name: str = LOCK_NAME

    @property
    def is_clone(self) -> bool:
        """Tell if it can be written to: the package's copy is not."""
        return self.root != SHIPPED

    @property
    def folder(self) -> Path:
        """The folder that holds ``dist/`` and logs: the clone's, or outside of one the current one."""
        return self.root if self.is_clone else Path.cwd()

    @property
    def lock_path(self) -> Path:
        """The file of the lock."""
        return self.root / self.lock_name

    @property
    def is_default(self) -> bool:
        """Tell if the series is the default one."""
        return self.lock_name == LOCK_NAME

    @property
    def carries(self) -> Path:
        """The folder of the carries."""
        return self.root / "carries"

    @property
    def patchsets(self) -> Path:
        """The folder of the patchsets."""
        return self.root / PATCHSETS

    @property
    def series(self) -> str:
        """The series: what the lock names, or the line of its release where it is from before series."""
        return series_of(self.lock)

    def patchset_path(self, patchset: str = "") -> Path:
        """Return the file of *patchset*; of the series' own by default."""
        own = self.series if self.lock.series else _BEFORE_SERIES
        return self.patchsets / f"{patchset or own}.toml"

    def build_spec(self, patchset: str = "", *, arch: str | None = None) -> BuildSpec:
        """Return the build spec of the lock and *patchset*, by default the series' own."""
        name = patchset or self.patchset_path().stem
        series = load_patchset(self.patchsets, name).series
        if series not in {"", self.series}:
            raise ConfigError(
                f"patchset {name} cannot be used with the lock of series {self.series}",
                because=f"it is the patchset of series {series}",
                next_step=f"--series {series}, or a patchset without a series",
            )
        return make_build_spec(self.root, self.lock, name, arch=arch)

    def of(self, patchset: str) -> Checkout:
        """Return the checkout by the series whose own *patchset* is; this one for any other patchset."""
        series = _declared(self.root, patchset)
        return self if series in {"", self.series} else _of_series(self.root, series)

    def of_wheel(self, wheel: Path) -> Checkout:
        """Return the checkout by the series that *wheel* says it is of; this one if it has no such series.

        That word only chooses a lock: what judges a wheel relies on no part of its record.
        """
        from sparkwright.publish.evidence import stated_series

        series = stated_series(wheel)
        return _of_series(self.root, series) if series in series_names(self.root) else self

    def locks(self) -> Iterator[Lock]:
        """Yield this lock, and those of the other series."""
        yield self.lock
        for series in series_names(self.root):
            if series != self.series:
                yield _of_series(self.root, series).lock


def series_of(lock: Lock) -> str:
    """Return the series of *lock*; for one of before series, the line of its release."""
    return lock.series or ".".join(lock.release.version.split(".")[:2])


def open_checkout(start: Path, series: str = "", patchset: str = "") -> Checkout:
    """Return the checkout that contains *start*, with the lock of one series; see `project_root`.

    By default that is the series of *patchset*, which may be a series' own, or the default one.

    Raises:
        ConfigError: neither it nor a folder above it holds an ``upstream.lock``, or the series has no lock.
        UnknownNameError: the series does not exist.
        LockMismatchError: its lock is another series', or pins a release from before it.
    """
    if root := project_root(start):
        return _of_series(root, series or _declared(root, patchset))
    raise _outside(start)


def require_clone(checkout: Checkout) -> None:
    """Refuse the package's copy for a command that writes to locks, patchsets or carries.

    Raises:
        ConfigError: it is that.
    """
    if not checkout.is_clone:
        raise _outside(Path.cwd(), "; the command writes to a clone, and not to the installed package")


def _outside(folder: Path, why: str = "") -> ConfigError:
    return ConfigError(
        f"{folder} is not in a checkout",
        because=f"no folder from there up holds {LOCK_NAME}{why}",
        next_step=f"git clone {_HOME} and change into it, or name a clone with --root",
    )


def series_names(root: Path) -> tuple[str, ...]:
    """Return the series that the checkout at *root* has a lock of, the default one first."""
    first = series_of(read_lock(root / LOCK_NAME))
    return (first, *(name for name in _locks(root) if name != first))


def pinned_by(checkout: Checkout, version: str) -> frozenset[str]:
    """Return names of the carries in the patchsets of those other series that pin the release *version*."""
    others = (
        _of_series(checkout.root, series)
        for series in series_names(checkout.root)
        if series != checkout.series
    )
    specs = [other.build_spec() for other in others if other.lock.release.version == version]
    return frozenset(carry.name for spec in specs for carry in spec.carries)


def lock_name(series: str) -> str:
    """Return the path of the lock of a *series* that is not the default one."""
    return f"{PATCHSETS}/{series}.lock"


def _locks(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / PATCHSETS).glob("*.lock"))


def _declared(root: Path, patchset: str) -> str:
    """Return the series that *patchset* is the own one of; empty for another, or one that does not exist."""
    known = patchset in patchset_names(root / PATCHSETS)
    return load_patchset(root / PATCHSETS, patchset).series if known else ""


def _of_series(root: Path, series: str) -> Checkout:
    """Return the checkout at *root* with the lock of *series*; of the default one if it is empty."""
    default = read_lock(root / LOCK_NAME)
    first = series_of(default)
    locks = _locks(root)
    if series in {"", first}:
        if first in locks:
            raise ConfigError(
                f"series {first} has two locks",
                because=f"both {LOCK_NAME} and {lock_name(first)} are its",
                next_step="keep the right one: docs/series.md has how the default series is changed",
            )
        require_fit(default, root / LOCK_NAME)
        return Checkout(root, default)
    if series not in locks:
        if _declared(root, series):
            raise ConfigError(
                f"series {series} has no lock",
                because=f"{lock_name(series)} does not exist, and {LOCK_NAME} is of series {first}",
                next_step=f"sparkwright lock bump {series}.0 --new-series {series}",
            )
        raise unknown_name("series", series, [first, *(name for name in locks if name != first)])
    name = lock_name(series)
    lock = read_lock(root / name)
    if lock.series != series:
        raise LockMismatchError(
            f"{root / name} is not the lock of series {series}",
            because=f"it has series = {lock.series!r}",
            next_step=f"name it after its series, or pin series {series} in it",
        )
    require_fit(lock, root / name)
    return Checkout(root, lock, name)


def new_checkout(checkout: Checkout, series: str) -> Checkout:
    """Return *checkout* as a series that has no lock yet sees it: the file of its lock does not exist."""
    if not _SERIES.fullmatch(series):
        raise ConfigError(f"{series!r} is no series", next_step="name a line of releases, such as 0.33")
    if series in series_names(checkout.root):
        raise ConfigError(
            f"series {series} is not new",
            because="it has a lock",
            next_step=f"move that one: sparkwright lock bump VERSION --series {series}",
        )
    lock = replace(checkout.lock, series=series)
    return Checkout(checkout.root, lock, lock_name(series))


def require_fit(lock: Lock, path: Path) -> None:
    """Refuse a *lock*, for the file *path*, whose release is older than its series."""
    try:
        older = bool(lock.series) and Version(lock.release.version) < Version(lock.series)
    except InvalidVersion:
        older = False  # a version that PEP 440 does not know is for `lock check` to refuse
    if older:
        raise LockMismatchError(
            f"{path} does not fit its series",
            because=f"release {lock.release.version} is older than series {lock.series}",
            next_step=f"pin {lock.series}.0 or a later release, or name another series in it",
        )


# The series in hints ------------------------------------------------------------------------------

TAKE_SERIES = (
    "bisect", "carry edit", "carry new", "carry prove", "carry refresh", "carry show", "companion",
    "doctor", "lock bump", "lock check", "lock runtime", "merge", "nightly", "patchset bump",
    "recipe check", "recipe import", "recipe new", "rehearse", "serve", "service install",
    "service upgrade", "status", "wheel",
)  # fmt: skip
"""The commands with ``--series``."""
_END = r"(?![\w-])(?![^,;:'`\n]*{})"  # the option may stand anywhere up to the end of the command
_COMMAND = re.compile(rf"\b(sparkwright (?:{'|'.join(TAKE_SERIES)})){_END.format('--series')}")
_MAKE = re.compile(
    rf"\b(make (?:bisect|companion|nightly|plan|prove|rehearse|serve|status|test-upstream|wheel))"
    rf"{_END.format('SERIES=')}"
)


def with_series(text: str, checkout: Checkout) -> str:
    """Return *text* with the series of *checkout* in each command that has none, if it is not the default."""
    if checkout.is_default:
        return text
    text = _COMMAND.sub(rf"\1 --series {checkout.series}", text)
    return _MAKE.sub(rf"\1 SERIES={checkout.series}", text)


@contextlib.contextmanager
def keeping_series(checkout: Checkout) -> Iterator[None]:
    """Name the series of *checkout* in the next step of an error that leaves the block."""
    try:
        yield
    except SparkwrightError as error:
        error.next_step = with_series(error.next_step, checkout)
        raise
