"""Assemble a wheel from upstream's wheel and the merged tree, and audit it."""

from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, BuiltWheel, assemble
from sparkwright.wheel.audit import Expectation, audit
from sparkwright.wheel.binaries import NativeExpectation
from sparkwright.wheel.kernels import KERNELS, kernels_record
from sparkwright.wheel.names import local_version, parse_name
from sparkwright.wheel.slim import plan_slim, python_members

__all__ = [
    "KERNELS",
    "AssemblyPlan",
    "BinarySource",
    "BuiltWheel",
    "Expectation",
    "NativeExpectation",
    "assemble",
    "audit",
    "kernels_record",
    "local_version",
    "parse_name",
    "plan_slim",
    "python_members",
]
