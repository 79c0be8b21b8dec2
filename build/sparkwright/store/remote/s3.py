"""The remote tier in a bucket: any server with the S3 interface, through obstore."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkwright.base.errors import ToolError
from sparkwright.store.remote.backend import RemoteFailure
from sparkwright.store.remote.settings import is_this_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkwright.store.remote.backend import TransferProgress
    from sparkwright.store.remote.settings import RemoteSettings

_CHUNK = 1 << 20
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class S3Backend:
    """One bucket and prefix. Endpoint, region and credentials are the environment's ``AWS_*`` variables."""

    def __init__(self, settings: RemoteSettings) -> None:
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise ToolError(
                "a remote store at s3:// cannot be used",
                because="obstore is not installed",
                next_step="pip install 'sparkwright[remote]'",
            ) from error
        parts, limits = urlsplit(settings.url), settings.limits
        endpoint = next((found for name in _ENDPOINTS if (found := os.environ.get(name))), "")
        local = is_this_machine(urlsplit(endpoint).hostname or "")
        options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        self._store = S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            client_options={
                "connect_timeout": timedelta(seconds=limits.connect_s),
                # Of one request: larger files are written in parts, and answers have a watch of their own.
                "timeout": timedelta(seconds=limits.stall_s * 6),
                "allow_http": local,
            },
            retry_config={
                "max_retries": 1,
                "retry_timeout": timedelta(seconds=limits.stall_s),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=200),
                    "max_backoff": timedelta(seconds=1),
                    "base": 2,
                },
            },
            **options,
        )

    def get(self, place: str, sink: Callable[[bytes], object], transfer: TransferProgress) -> bool:
        """Hand the object at *place* to *sink*; see `RemoteBackend`."""
        import obstore

        try:
            for data in obstore.get(self._store, place).stream(min_chunk_size=_CHUNK):
                transfer.advance(len(data))
                sink(bytes(data))
        except FileNotFoundError:
            return False
        except RemoteFailure:
            raise
        except Exception as error:
            raise _failure(error) from error
        return True

    def has(self, place: str) -> bool:
        """Tell if there is an object at *place*; see `RemoteBackend`."""
        import obstore

        try:
            obstore.head(self._store, place)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise _failure(error) from error
        return True

    def put(self, place: str, content: bytes | Path, transfer: TransferProgress) -> None:
        """Write *content* to *place*; see `RemoteBackend`."""
        import obstore

        del transfer  # obstore reads the file itself
        try:
            obstore.put(self._store, place, content)
        except Exception as error:
            raise _failure(error) from error


def _failure(error: Exception) -> Exception:
    """Return the failure to raise, told by the kind of *error* alone: its text may hold a key's id."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    denied = type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"} or isinstance(
        error, PermissionError
    )
    why = "it refuses access" if denied else f"the request failed ({type(error).__name__})"
    return RemoteFailure(why, final=denied)
