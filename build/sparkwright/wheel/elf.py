"""The machine of an ELF file, read from its first bytes (System V ABI, chapter 4)."""

from __future__ import annotations

ELF_MAGIC = b"\x7fELF"
HEADER_SIZE = 20
_MACHINE = slice(18, 20)
_LITTLE, _BIG = 1, 2
_MACHINES = {62: "x86_64", 183: "aarch64"}


def is_elf(beginning: bytes) -> bool:
    """Tell if a file with this *beginning* is an ELF file."""
    return beginning.startswith(ELF_MAGIC)


def machine_of(beginning: bytes) -> str:
    """Return the machine that an ELF file is for, by its first 20 bytes.

    Returns:
        ``aarch64``, ``x86_64``, ``unknown (N)`` for another ``e_machine``, or ``damaged``.
    """
    if len(beginning) < HEADER_SIZE or beginning[5] not in {_LITTLE, _BIG}:
        return "damaged"
    number = int.from_bytes(beginning[_MACHINE], "little" if beginning[5] == _LITTLE else "big")
    return _MACHINES.get(number, f"unknown ({number})")
