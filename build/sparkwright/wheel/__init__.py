"""Puts a wheel together out of upstream's wheel and the merged tree, and audits it."""

from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, BuiltWheel, Provider, assemble
from sparkwright.wheel.audit import AuditReport, Expectation, audit
from sparkwright.wheel.checks import Check
from sparkwright.wheel.names import WheelName, local_version, parse_name

__all__ = [
    "AssemblyPlan",
    "AuditReport",
    "BinarySource",
    "BuiltWheel",
    "Check",
    "Expectation",
    "Provider",
    "WheelName",
    "assemble",
    "audit",
    "local_version",
    "parse_name",
]
