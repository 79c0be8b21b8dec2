"""The JSON schema of ``verdict.json``."""

from __future__ import annotations

from typing import Any

import msgspec

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts
from sparkwright.verify.results import VERDICT_FORMAT

_REFERENCE = "#/$defs/{name}"


def verdict_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12) of ``verdict.json`` and of what ``verify --json`` prints.

    Keys may be added within a version, so unknown ones must be ignored.
    """
    (finding, facts, verdict), components = msgspec.json.schema_components(
        (Finding, BootFacts, Verdict), ref_template=_REFERENCE
    )
    names = {"type": "array", "items": {"type": "string"}}
    count = {"type": "integer", "minimum": 0}
    coverage = {
        "text": {"type": "string"},
        "checks": names,
        "without": names,
        "applicable-conclusions": count,
        "conclusions": count,
    }
    file = {
        "path": {"type": "string"},
        "size": count,
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    }
    properties: dict[str, Any] = {
        "format": {"const": VERDICT_FORMAT},
        "verdict": verdict,
        "coverage": _object(coverage),
        "lacks": {"type": "object", "additionalProperties": {"type": "string"}},
        "run": {"type": "object", "description": "What was verified, with which options, on which client."},
        "servers": {"type": "object", "additionalProperties": facts},
        "findings": {"type": "array", "items": finding},
        "cells": count,
        "requests": count,
        "failed-requests": count,
    }
    schema = _object(properties)
    schema["properties"]["files"] = {"type": "array", "items": _object(file)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"sparkwright verify: verdict.json, format {VERDICT_FORMAT}",
        **schema,
        "$defs": {name: _open(component) for name, component in sorted(components.items())},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": sorted(properties), "properties": dict(properties)}


def _open(component: dict[str, Any]) -> dict[str, Any]:
    """Return *component* without the refusal of unknown keys, which later versions may have."""
    return {name: value for name, value in component.items() if name != "additionalProperties"}
