"""Pins in memory: the lock of any release, commit or nightly, without a file.

Open `pin_of` first. To build for one, give `make_job` the checkout with that lock in place of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import FetchError, NativeInputsError
from sparkwright.base.text import few
from sparkwright.git.remotes import check_object_id
from sparkwright.git.repository import Repository
from sparkwright.lock.bump import successor
from sparkwright.lock.model import Lock
from sparkwright.pipeline.checkout import Checkout
from sparkwright.upstream.commits import first_download, gather_commit, has_wheels, nightly_commit
from sparkwright.upstream.evidence import propose_lock
from sparkwright.upstream.index import NIGHTLY, VARIANT
from sparkwright.upstream.releases import Access, open_source
from sparkwright.wheel.source import classify

_KIND = "pin"
# Part of the key: raised when a pin of the same target has other values.
_RULES = 1
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ANCESTORS = 20  # as far back as upstream's own setup.py searches, since publication is some commits late
# What upstream's setup.py (WHEEL_BLOCKING_PATHS) counts besides the files that `classify` calls native or
# metadata: the Python side of the compiled operators.
_ALSO_NATIVE = frozenset({"vllm/_custom_ops.py"})
_SHOWN = 3


def is_release(target: str) -> bool:
    """Tell if *target* is a release's version, and neither a commit's id nor ``nightly``."""
    return target != NIGHTLY and not _COMMIT.fullmatch(target)


def pin_of(
    checkout: Checkout, access: Access, target: str, *, source: str = "git", machines: Sequence[str] = ()
) -> Lock:
    """Return the lock that pins *target*; nothing is written but the store.

    A pin that was made before costs one look into the store.

    *target* is a release's version, a commit's full id, or ``nightly`` for the newest commit with a wheel;
    *source* is the origin of commits, as for `open_source`.

    Raises:
        FetchError: the release, the commit or its wheels are not there, or could not be transferred.
        NativeInputsError: only wheels of commits with other native inputs are there.
        NotInStoreError: the network is off, and something was never fetched.
        LockMismatchError: the release or commit contradicts itself.
    """
    commit = nightly_commit(access) if target == NIGHTLY else target
    old, wanted = checkout.lock, tuple(machines) or tuple(checkout.lock.wheels)
    key = digest_of([_RULES, commit, wanted, old.release.git, VARIANT])
    if (known := access.store.find_record_as(Lock, _KIND, key)) is not None:
        return replace(known, series=old.series, native=old.native, rehearsal=old.rehearsal)
    if not is_release(commit):
        found = _pin_commit(checkout, access, commit, source=source, machines=wanted)
    else:
        found = propose_lock(access, old, commit, wanted)
    access.store.put_record(_KIND, key, to_builtins(replace(found, series="", native=None, rehearsal=None)))
    return found


def _pin_commit(
    checkout: Checkout, access: Access, commit: str, *, source: str, machines: Sequence[str]
) -> Lock:
    old, repository = checkout.lock, access.repository
    pristine = open_source(source, access).commit(commit, old.release.git)
    origin = nearest_wheel(repository, commit, lambda one: has_wheels(access, one, machines))
    wheels = {machine: first_download(access, origin, machine) for machine in machines}
    evidence = gather_commit(access, commit, pristine.tree, wheels)
    return successor(old, evidence, wheels)


def nearest_wheel(repository: Repository, commit: str, available: Callable[[str], bool]) -> str:
    """Return the commit whose wheel serves for *commit*.

    That is *commit* itself, or the nearest of its first-parent ancestors with the same native inputs. Trees
    decide and never dates: a change that was taken out again does not count.

    Raises:
        NativeInputsError: no ancestor with the same native inputs has a wheel.
        FetchError: as before, and native inputs never changed there.
    """
    blocked: tuple[str, tuple[str, ...]] | None = None
    for distance, ancestor in enumerate(_ancestors(repository, commit)):
        if distance and (differing := native_differences(repository, ancestor, commit)):
            blocked = blocked or (ancestor, differing)
        elif available(ancestor):
            return ancestor
    what = f"no wheel of upstream's serves for commit {commit[:12]}"
    next_step = "wait until upstream has published its wheel, or pin an older commit"
    if blocked is None:
        because = f"neither it nor {_ANCESTORS} commits before it have one in upstream's index of wheels"
        raise FetchError(what, because=because, next_step=next_step)
    raise NativeInputsError(
        what,
        because=f"it has none, and {blocked[0][:12]} before it differs in {few(blocked[1], _SHOWN)}",
        next_step=next_step,
    )


def _ancestors(repository: Repository, commit: str) -> Iterator[str]:
    """Yield *commit* and its first-parent ancestors, as far back as is searched."""
    limit = f"--max-count={_ANCESTORS + 1}"
    done = repository.command("rev-list", "--first-parent", limit, check_object_id(commit))
    yield from done.text.split()


def native_differences(repository: Repository, one: str, other: str) -> tuple[str, ...]:
    """Return the paths that decide a wheel's binaries or metadata and differ between two commits; sorted."""
    changed = repository.changed(repository.tree_of(one), repository.tree_of(other))
    return tuple(
        sorted(path for path in changed if path in _ALSO_NATIVE or classify(path) in {"native", "metadata"})
    )
