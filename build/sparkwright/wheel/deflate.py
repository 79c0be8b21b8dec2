"""Deflate a binary once, for every wheel that holds it.

Two zlib libraries deflate the same bytes differently. So the deflated bytes are an input of a wheel,
kept beside the binary, and are not made by the assembler: the same plan still gives the same bytes
everywhere.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from sparkwright.base.digests import CHUNK, digest_of, sha256_file
from sparkwright.store import Store

_LEVEL = 6


def deflate(source: Path, target: Path) -> None:
    """Write the content of *source* to *target* as a raw deflate stream (RFC 1951), at about 20 MB/s."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(CHUNK):
            writing.write(deflater.compress(chunk))
        writing.write(deflater.flush())


def deflated_in(store: Store, sha256: str) -> Path:
    """Return the path in *store* of the file with that digest as a raw deflate stream, made once."""
    key = digest_of([_LEVEL, sha256])
    record = store.find_record("deflated", key) or {}
    if found := store.find_intact(str(record.get("sha256", ""))):
        return found
    with store.scratch() as scratch:
        target = scratch / "deflated"
        deflate(store.file_path(sha256), target)
        digest = sha256_file(target)
        path = store.adopt_file(target, digest, verified=True)
    store.put_record("deflated", key, {"sha256": digest})
    return path


def holds(deflated: bytes, content: bytes) -> bool:
    """Tell if the raw deflate stream *deflated* inflates to exactly *content*."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        inflated = inflater.decompress(deflated, len(content) + 1)
    except zlib.error:
        return False
    return inflated == content and inflater.eof and not inflater.unused_data
