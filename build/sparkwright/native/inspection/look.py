"""All that is known about one binary, found once and kept by its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sparkwright.canonical import digest_of
from sparkwright.config import Model, to_builtins
from sparkwright.native.inspection.device import DeviceCode, read_device_code
from sparkwright.native.inspection.elf import ElfFacts, read_elf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkwright.store import Store

__all__ = ["INSPECTION_RULES", "Inspection", "Inspector", "inspect"]

INSPECTION_RULES = 1
"""Part of the records' keys: raised when the same bytes are read differently."""


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
        key = digest_of([INSPECTION_RULES, sha256])
        record = self.store.find_record("inspection", key)
        if record is not None:
            try:
                return msgspec.convert(record, Inspection)
            except msgspec.ValidationError:
                pass  # damaged, or of another time: it is found anew
        found = inspect(provide(), self.cuobjdump())
        self.store.put_record("inspection", key, to_builtins(found))
        return found
