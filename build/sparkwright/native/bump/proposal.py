"""The whole of ``[native]`` for the release that a lock pins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from sparkwright.lock import Lock
from sparkwright.lock.bump import Decision
from sparkwright.lock.cmake_targets import oldest_gxx
from sparkwright.lock.native import NativePin
from sparkwright.native.bump.dependencies import NextSources
from sparkwright.native.bump.targets import next_extensions
from sparkwright.native.bump.toolkit import next_toolkit
from sparkwright.upstream import Access


class NativeProposal(NamedTuple):
    """``[native]`` for another release, and what a person has to decide about it."""

    native: NativePin
    decisions: tuple[Decision, ...]


def propose_native(
    access: Access,
    lock: Lock,
    old: NativePin,
    texts: Mapping[str, str],
    *,
    copies: Mapping[str, Path] | None = None,
) -> NativeProposal:
    """Return the tables *old* moved to the release that *lock* pins.

    Binaries and costs stay those of the release that they were measured on, until something is compiled.
    A candidate is attested by the wheel of its own release, and goes with that.

    Args:
        access: where packages and sources come from.
        lock: the new pin, whose own tables are not looked at.
        old: the present tables.
        texts: the CMake files of the release by path.
        copies: the user's folders with sources, by source.

    Raises:
        FetchError, NotInStoreError: a package could not be had.
        LockMismatchError: torch states no CUDA, or a package lost its folders.
        ConfigError: a copy is of no source of the release.
    """
    toolkit, toolkit_decisions = next_toolkit(access, old.toolkit, lock.release.torch)
    sources = NextSources(access, lock, texts, copies or {}).move(old.sources)
    extensions, extension_decisions = next_extensions(lock, sources, old.extensions)
    pins = sources.pins
    if old.release != lock.release.version:
        pins = {name: structs.replace(pin, candidate=None) for name, pin in pins.items()}
    measured = old.measured or old.release
    native = structs.replace(
        old,
        release=lock.release.version,
        toolkit=toolkit,
        sources=pins,
        extensions=extensions,
        oldest_gxx=oldest_gxx(texts),
        measured="" if measured == lock.release.version else measured,
    )
    return NativeProposal(native, (*toolkit_decisions, *sources.decisions, *extension_decisions))
