"""All that is known about one binary, found once and kept by its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.native.inspection.device import DeviceCode, read_device_code
from sparkwright.native.inspection.elf import ElfFacts, read_elf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkwright.store import Store

INSPECTION_RULES = 1
"""Part of the records' keys: raised when the same bytes are read differently."""

M = TypeVar("M", bound=Model)


class Inspection(Model, frozen=True):
    """What a binary is.

    Attributes:
        elf: its host side.
        device: its device side.
    """

    elf: ElfFacts
    device: DeviceCode


def inspect(path: Path, cuobjdump: Path) -> Inspection:
    """Look into the binary at *path*, with the program *cuobjdump* for its device code.

    Raises:
        BinaryError: it cannot be looked into.
        ToolError: there is no such program.
    """
    return Inspection(elf=read_elf(path), device=read_device_code(path, cuobjdump))


@dataclass(frozen=True)
class Inspector:
    """Looks into binaries, each only once for a store.

    Attributes:
        store: keeps what was found.
        cuobjdump: gives the program; called only when something has to be looked into.
    """

    store: Store
    cuobjdump: Callable[[], Path]

    def inspect(self, sha256: str, provide: Callable[[], Path]) -> Inspection:
        """What the binary of digest *sha256* is; *provide* gives the file when it was never looked into.

        Raises:
            BinaryError: it cannot be looked into.
            ToolError: there is no program to do so.
        """
        return self.remember([sha256], Inspection, lambda: inspect(provide(), self.cuobjdump()))

    def remember(self, question: list[object], kind: type[M], answer: Callable[[], M]) -> M:
        """The answer to a *question* about a binary, which is found once for a store.

        Args:
            question: all that decides the answer, JSON-ready; the binary's SHA-256 among it.
            kind: what the answer is.
            answer: finds it.
        """
        key = digest_of([INSPECTION_RULES, *question])
        known = self.store.find_record_as(kind, "inspection", key)
        if known is None:  # or it is damaged, or of another time
            known = answer()
            self.store.put_record("inspection", key, to_builtins(known))
        return known
