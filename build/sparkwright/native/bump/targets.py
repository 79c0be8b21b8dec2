"""The extensions of another release, as its CMake files declare them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import structs

from sparkwright.lock import Lock
from sparkwright.lock.bump import Decision
from sparkwright.lock.cmake_targets import CMakeExtension, read_extensions
from sparkwright.lock.native import ExtensionSpec
from sparkwright.native.bump.dependencies import NextSources


def next_extensions(
    lock: Lock, sources: NextSources, old: Mapping[str, ExtensionSpec]
) -> tuple[dict[str, ExtensionSpec], list[Decision]]:
    """Return the extensions to compile for the release of *lock*, and what is left to decide.

    An extension without device code that the project itself defines is added; one that is defined nowhere
    any more goes. What a new extension with device code is compiled from, a person has to read.

    Args:
        lock: the new pin.
        sources: its sources.
        old: the present extensions.
    """
    declared = read_extensions(sources.texts)
    kept: dict[str, ExtensionSpec] = {}
    decisions: list[Decision] = []
    for name, spec in old.items():
        if name in declared:
            kept[name] = structs.replace(
                spec, member=declared[name].member, host_only=declared[name].host_only
            )
        elif _defined_in_a_source(name, spec, sources):
            kept[name] = spec
        else:
            decisions.append(
                Decision(
                    f"native.extensions.{name}",
                    "no CMake file defines it any more: upstream's wheel has what replaced it",
                    f"grep -rn {name} CMakeLists.txt cmake vllm",
                )
            )
    # The project's own extensions are in its root's file, and so is what several of them share.
    by_file = {source.declared_in: name for name, source in lock.sources.items() if "/" in source.declared_in}
    for name, found in declared.items():
        if name in old:
            continue
        if found.host_only and found.abi3 and found.declared_in not in by_file:
            kept[name] = ExtensionSpec(member=found.member, host_only=True)
        elif decision := _undecided(found, by_file.get(found.declared_in), sources):
            decisions.append(decision)
    return kept, decisions


def _defined_in_a_source(name: str, spec: ExtensionSpec, sources: NextSources) -> bool:
    """Tell if one of the sources of *spec* brings a CMake project that defines it, as far as known."""
    for source in spec.sources:
        pin = sources.pins.get(source)
        if pin is not None and "CMakeLists.txt" in pin.paths:
            text = sources.listings.get(source)
            return text is None or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
    return False


def _undecided(found: CMakeExtension, source: str | None, sources: NextSources) -> Decision | None:
    """Return the decision about a new extension; `None` where its source was decided to be left alone."""
    asked = {decision.key for decision in sources.decisions}
    if source is not None and f"native.sources.{source}" not in asked:
        return None
    return Decision(
        f"native.extensions.{found.name}",
        "new with this release, with device code: upstream's binary is used"
        + (f"; it is compiled from {source}" if source else ""),
        f"grep -n '{found.name}' -B40 {found.declared_in}",
    )
