"""Assemble a wheel from upstream's wheel and the merged tree, and audit it."""

from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, BuiltWheel, assemble
from sparkwright.wheel.audit import AuditReport, audit
from sparkwright.wheel.binaries import Expectation, NativeExpectation
from sparkwright.wheel.checks import AuditCheck
from sparkwright.wheel.kernels import KERNELS, LeftOut, SlimPlan, kernels_record, plan_slim, python_members
from sparkwright.wheel.names import WheelName, local_version, parse_name
from sparkwright.wheel.rewrite import deflate

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
