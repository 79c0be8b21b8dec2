"""Records as the remote tier keeps them: with their kind and key, and signed by their writer.

A signature covers kind, key and record together, so no entry counts under another key. An older entry of the
same key is as true as a newer one: a key is the digest of all inputs, and results do not expire. So neither
times nor counters are needed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.digests import sha256_bytes
from sparkwright.store.remote.keys import MachineKey, WriterKey

MOST_ENTRY_BYTES = 16 << 20

TRAVELLING = frozenset({"unit", "extension", "deflated", "proof", "audit"})
"""The kinds of records that are true on every machine.

Their keys are digests of content, toolchain and rules, and they name no path of a machine. All others stay:
what names folders or objects of the local repository (merges, configurations, trees), what was measured here
(costs), and what an index once said.
"""
NAMING_FILES = frozenset({"unit", "extension", "deflated"})
"""Those that name files by digest, without which they are of no use."""

_FORMAT = 1


class RefusedEntryError(Exception):
    """An entry does not count.

    Attributes:
        writer: the id of a writer that is not known here, or ``unsigned``; empty where the entry itself is at
            fault.
    """

    def __init__(self, message: str, writer: str = "") -> None:
        super().__init__(message)
        self.writer = writer


class _Entry(msgspec.Struct, frozen=True):
    """An entry's JSON: `record` is the record's text, `signature` is in base64."""

    format: int
    kind: str
    key: str
    record: str
    writer: str = ""
    signature: str = ""

    @property
    def statement(self) -> bytes:
        """Return the bytes that are signed."""
        return "\0".join(("sparkwright store entry", str(_FORMAT), self.kind, self.key, self.record)).encode()


def place_of(kind: str, key: str) -> str:
    """Return the place of the entry of *kind* and *key*."""
    return f"ac/{sha256_bytes(f'sparkwright {_FORMAT} {kind} {key}'.encode())}"


def encode_entry(kind: str, key: str, record: bytes, signer: MachineKey | None) -> bytes:
    """Return *record* as an entry, signed where there is a *signer*."""
    entry = _Entry(_FORMAT, kind, key, record.decode())
    if signer is not None:
        signature = base64.b64encode(signer.sign(entry.statement)).decode()
        entry = msgspec.structs.replace(entry, writer=signer.public.id, signature=signature)
    return msgspec.json.encode(entry)


def decode_entry(body: bytes, kind: str, key: str, writers: Mapping[str, WriterKey] | None) -> bytes:
    """Return the record in the entry *body*; where *writers* is `None`, every entry counts, signed or not.

    Raises:
        RefusedEntryError: it is no entry of that *kind* and *key*, or no believed writer signed it.
    """
    try:
        entry = decode_json(body, _Entry)
        record = json.loads(entry.record)
    except (ValueError, RecursionError) as error:  # msgspec's errors are of the first kind
        raise RefusedEntryError("it is no entry") from error
    if entry.format != _FORMAT or not isinstance(record, dict):
        raise RefusedEntryError("it is no entry of a known format")
    if (entry.kind, entry.key) != (kind, key):
        raise RefusedEntryError("it is the entry of another key")
    if writers is None:
        return entry.record.encode()
    if not entry.signature:
        raise RefusedEntryError("it is not signed", writer="unsigned")
    writer = writers.get(entry.writer)
    if writer is None:
        raise RefusedEntryError("its writer is not known here", writer=entry.writer)
    try:
        signature = base64.b64decode(entry.signature, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedEntryError("its signature cannot be read") from error
    if not writer.signed(entry.statement, signature):
        raise RefusedEntryError("its signature is wrong")
    return entry.record.encode()
