"""The series of a version."""

from __future__ import annotations

from packaging.version import Version


def series_of(version: str) -> str:
    """Return the series of a PEP 440 *version*: ``0.24`` of ``0.24.0+spark.4.84110ebb``."""
    return ".".join(str(number) for number in Version(version).release[:2])
