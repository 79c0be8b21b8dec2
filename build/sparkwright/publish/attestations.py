"""Attestations of a wheel after PEP 740: made elsewhere, published beside the wheel and linked on pages.

Sigstore's signatures in them are not verified here; ``pypi-attestations`` does that.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import PublishError

SUFFIX = ".attestations.json"
"""Behind the name of a wheel: the file with its attestations."""


class _AttestedEnvelope(msgspec.Struct):
    statement: str
    signature: str


class _Attestation(msgspec.Struct):
    version: Literal[1]
    verification_material: dict[str, Any]
    envelope: _AttestedEnvelope


class _AttestationBundle(msgspec.Struct):
    publisher: dict[str, Any]
    attestations: list[_Attestation]


class _AttestedProvenance(msgspec.Struct):
    version: Literal[1]
    attestation_bundles: list[_AttestationBundle]


class _AttestedSubject(msgspec.Struct):
    digest: dict[str, str]


class _AttestedStatement(msgspec.Struct):
    subject: list[_AttestedSubject]


def read_attestations(wheel: Path, sha256: str) -> bytes:
    """Return the attestations in the file beside *wheel*, nothing if there is none.

    Raises:
        PublishError: it is no provenance object of PEP 740, or attests something else than *sha256*.
    """
    path = wheel.with_name(wheel.name + SUFFIX)
    data = b""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
    if data and (because := refusal_of(data, sha256)):
        raise PublishError(
            f"{wheel.name} cannot be published with {path.name}",
            because=because,
            next_step="make the attestations again, for this wheel, or move that file away",
        )
    return data


def refusal_of(data: bytes, sha256: str) -> str:
    """Return the reason why *data* are no attestations of the wheel with that digest; nothing if they are."""
    try:
        found = decode_json(data, _AttestedProvenance)
        statements = [
            decode_json(base64.b64decode(one.envelope.statement), _AttestedStatement)
            for bundle in found.attestation_bundles
            for one in bundle.attestations
        ]
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
        return f"it is no provenance object of PEP 740: {error}"
    if not statements:
        return "it contains no attestation"
    for statement in statements:
        if [subject.digest.get("sha256") for subject in statement.subject] != [sha256]:
            return f"one of its attestations is not of SHA-256 {sha256}"
    return ""
