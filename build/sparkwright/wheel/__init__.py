"""Assemble a wheel from upstream's wheel and the merged tree, and audit it."""

from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, BuiltWheel, Provider, assemble
from sparkwright.wheel.audit import AuditReport, Expectation, audit
from sparkwright.wheel.binaries import NativeExpectation
from sparkwright.wheel.checks import AuditCheck
from sparkwright.wheel.deflate import deflate
from sparkwright.wheel.kernels import KERNELS, LeftOut, kernels_record
from sparkwright.wheel.names import WheelName, local_version, parse_name
from sparkwright.wheel.slim import SlimPlan, plan_slim, python_members

__all__ = [
    "KERNELS",
    "AssemblyPlan",
    "AuditCheck",
    "AuditReport",
    "BinarySource",
    "BuiltWheel",
    "Expectation",
    "LeftOut",
    "NativeExpectation",
    "Provider",
    "SlimPlan",
    "WheelName",
    "assemble",
    "audit",
    "deflate",
    "kernels_record",
    "local_version",
    "parse_name",
    "plan_slim",
    "python_members",
]
