"""Inspect a compiled extension: its machine, the libraries that it needs, its device code.

Start reading at `inspect`. No binary is loaded or run, and any machine can inspect the binaries of any
other.
"""

from __future__ import annotations

from sparkwright.native.inspection.classes import (
    KernelClass,
    Tally,
    best_class,
    class_of,
    classify,
    of_class,
)
from sparkwright.native.inspection.device import DeviceCode, KernelGroup, read_device_code
from sparkwright.native.inspection.elf import ElfFacts, Symbol, exports, read_elf
from sparkwright.native.inspection.equipment import find_surroundings, inspector_of, surroundings_of
from sparkwright.native.inspection.floors import honest_platform, over_platform
from sparkwright.native.inspection.look import INSPECTION_RULES, Inspection, Inspector, inspect
from sparkwright.native.inspection.symbols import (
    PROMISED_BY_DRIVER,
    Python,
    Resolution,
    Surroundings,
    resolve,
    unprovided,
)

__all__ = [
    "INSPECTION_RULES",
    "PROMISED_BY_DRIVER",
    "DeviceCode",
    "ElfFacts",
    "Inspection",
    "Inspector",
    "KernelClass",
    "KernelGroup",
    "Python",
    "Resolution",
    "Surroundings",
    "Symbol",
    "Tally",
    "best_class",
    "class_of",
    "classify",
    "exports",
    "find_surroundings",
    "honest_platform",
    "inspect",
    "inspector_of",
    "of_class",
    "over_platform",
    "read_device_code",
    "read_elf",
    "resolve",
    "surroundings_of",
    "unprovided",
]
