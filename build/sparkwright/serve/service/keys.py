"""The API key of a service: a file of mode 600, made once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from sparkwright.serve.settings import read_key

_BYTES = 32


def make_key(path: Path, given: str = "") -> bool:
    """Make a key in *path*, unless there is one; return true if it was made.

    Args:
        path: the file.
        given: the key to write; a random one if empty.

    Raises:
        ConfigError: the file that is there may be read by others, or holds no key.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        read_key(path)
        return False
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        os.fchmod(descriptor, 0o600)  # whatever the umask is
        stream.write(f"{given or f'sk-{secrets.token_urlsafe(_BYTES)}'}\n")
    return True
