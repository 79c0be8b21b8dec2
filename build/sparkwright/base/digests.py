"""Canonical bytes and digests: equal inputs get equal names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 1 << 20


def to_json(value: Any) -> bytes:
    """Return *value* as JSON with sorted keys, no spaces and no escapes: one value, one spelling.

    Strings that stand for bytes which are not UTF-8, such as some file names, stay distinct too.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="surrogatepass")


def digest_of(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of *value*, 64 hex digits."""
    return sha256_bytes(to_json(value))


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of *data*, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_stream(stream: BinaryIO) -> str:
    """Return the SHA-256 of the rest of *stream*, 64 hex digits."""
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def copy_hashed(source: BinaryIO, target: BinaryIO, *, most: int | None = None) -> str:
    """Copy the rest of *source* to *target*; return the SHA-256 of exactly the bytes written.

    It stops after *most* bytes, with as much as one chunk more written.
    """
    digest = hashlib.sha256()
    done = 0
    while (most is None or done <= most) and (chunk := source.read(CHUNK)):
        target.write(chunk)
        digest.update(chunk)
        done += len(chunk)
    return digest.hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of the file at *path*, 64 hex digits."""
    with path.open("rb") as stream:
        return sha256_stream(stream)
