"""The facts of one binary, read once and cached by its digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.native.inspection.device import DeviceCode, read_device_code
from sparkwright.native.inspection.elf import ElfFacts, read_elf
from sparkwright.store import Store

INSPECTION_RULES = 1
"""Part of the records' keys: raised when the same bytes are read differently."""

M = TypeVar("M", bound=Model)


class Inspection(Model, frozen=True):
    """The facts of a binary.

    Attributes:
        elf: its dynamic section and symbols.
    """

    elf: ElfFacts
    device: DeviceCode


def inspect(path: Path, cuobjdump: Path) -> Inspection:
    """Inspect the binary at *path*, with the program *cuobjdump* for its device code.

    Raises:
        BinaryError: it cannot be inspected.
        ToolError: there is no such program.
    """
    return Inspection(elf=read_elf(path), device=read_device_code(path, cuobjdump))


@dataclass(frozen=True)
class Inspector:
    """Inspects binaries, each only once for a store.

    Attributes:
        store: caches the results.
        cuobjdump: returns the program; called only when a binary has to be inspected.
    """

    store: Store
    cuobjdump: Callable[[], Path]

    def inspect(self, sha256: str, provide: Callable[[], Path]) -> Inspection:
        """Return the facts of the binary *sha256*; call *provide* for the file when they are not cached.

        Raises:
            BinaryError: it cannot be inspected.
            ToolError: there is no cuobjdump.
        """
        return self.remember([sha256], Inspection, lambda: inspect(provide(), self.cuobjdump()))

    def remember(self, question: list[object], kind: type[M], answer: Callable[[], M]) -> M:
        """Return the cached result for *question*; call *answer* when there is none.

        Args:
            question: all that decides the result, JSON-ready, with the binary's SHA-256.
            kind: type of the result.
            answer: computes the result.
        """
        key = digest_of([INSPECTION_RULES, *question])
        known = self.store.find_record_as(kind, "inspection", key)
        if known is None:  # also where the record is damaged or of another format
            known = answer()
            self.store.put_record("inspection", key, to_builtins(known))
        return known
