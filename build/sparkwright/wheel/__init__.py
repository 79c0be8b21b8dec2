"""Puts a wheel together out of upstream's wheel and the merged tree, and audits it."""

from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, BuiltWheel, Provider, assemble
from sparkwright.wheel.names import WheelName, local_version, parse_name

__all__ = [
    "AssemblyPlan",
    "BinarySource",
    "BuiltWheel",
    "Provider",
    "WheelName",
    "assemble",
    "local_version",
    "parse_name",
]
