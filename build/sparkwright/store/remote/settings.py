"""The settings of the remote tier: the ``--store`` option, the environment, and the user's ``store.toml``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import ConfigError
from sparkwright.base.machine import is_this_machine

NONE = "none"
"""The address that turns the tier off where the file names one."""

_FORMAT = 1
_SCHEMES = ("https", "http", "s3")


@dataclass(frozen=True)
class RemoteLimits:
    """Limits that keep a slow, dead or hostile server from holding up a build.

    Attributes:
        stall_s: longest wait for a connection, for an answer, and between two pieces of it, in seconds.
        least_rate: bytes a second that a transfer has to bring on the average after `stall_s`.
    """

    stall_s: float = 10.0
    least_rate: float = float(1 << 20)
    most_bytes: int = 4 << 30


@dataclass(frozen=True)
class RemoteSettings:
    """The settings of the remote tier.

    Attributes:
        token: the bearer token; where it is empty, ``~/.netrc`` is asked for each request.
        writers: keys of the writers whose records count, beside this machine's own, by a name for people.
    """

    url: str
    token: str = field(default="", repr=False)
    write: bool = True
    writers: Mapping[str, str] = field(default_factory=dict)
    key_file: Path = Path()
    limits: RemoteLimits = field(default_factory=RemoteLimits)

    @property
    def encrypted(self) -> bool:
        """Tell if credentials may be sent: the connection is encrypted, or stays on this machine."""
        parts = urlsplit(self.url)
        return parts.scheme != "http" or is_this_machine(parts.hostname or "")


class _StoreFile(Model, frozen=True):
    """The user's ``store.toml``."""

    format: int = _FORMAT
    url: str = ""
    write: bool = True
    writers: dict[str, str] = msgspec.field(default_factory=dict)


def key_file(environment: Mapping[str, str]) -> Path:
    """Return the path of this machine's key: ``SPARKWRIGHT_STORE_KEY``, or one in the user's data folder."""
    from platformdirs import user_data_path

    chosen = environment.get("SPARKWRIGHT_STORE_KEY")
    return Path(chosen).expanduser() if chosen else user_data_path("sparkwright") / "store-key.pem"


def read_remote_settings(
    url: str = "", environment: Mapping[str, str] | None = None
) -> RemoteSettings | None:
    """Return the settings of the remote tier, or `None` where there is none.

    The file is ``SPARKWRIGHT_STORE_CONFIG``, or the user's ``store.toml``. An address given with ``--store``
    or ``SPARKWRIGHT_STORE_URL`` is stronger than the file's. ``SPARKWRIGHT_STORE_TOKEN`` is the token.
    """
    from platformdirs import user_config_path

    environment = os.environ if environment is None else environment
    chosen = environment.get("SPARKWRIGHT_STORE_CONFIG")
    path = Path(chosen).expanduser() if chosen else user_config_path("sparkwright") / "store.toml"
    file = load_toml(path, _StoreFile, newest_format=_FORMAT) if chosen or path.is_file() else _StoreFile()
    address = url or environment.get("SPARKWRIGHT_STORE_URL", "") or file.url
    if not address or address == NONE:
        return None
    parts = _checked(address)
    found = RemoteSettings(
        url=urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")),
        token=environment.get("SPARKWRIGHT_STORE_TOKEN", ""),
        write=file.write,
        writers=file.writers,
        key_file=key_file(environment),
    )
    if found.token and not found.encrypted:
        raise ConfigError(
            f"the remote store {found.url} does not get SPARKWRIGHT_STORE_TOKEN",
            because="the connection is not encrypted, so it could be read on the way",
            next_step="use https, or unset it",
        )
    return found


def _checked(address: str) -> SplitResult:
    """Return the parts of *address*; no error repeats it, since it may hold a password."""
    try:
        parts = urlsplit(address)
        port, host = parts.port, parts.hostname
    except ValueError:
        parts, port, host = urlsplit(""), None, None
    more = parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme not in _SCHEMES or not host or port == 0 or more:
        raise ConfigError(
            "the remote store's address cannot be used",
            because="it has to be https://HOST/PATH, http://HOST/PATH or s3://BUCKET/PREFIX, with no "
            "query and no credentials, which are in SPARKWRIGHT_STORE_TOKEN or ~/.netrc",
            next_step="correct --store, SPARKWRIGHT_STORE_URL or store.toml; 'none' turns the tier off",
        )
    return parts
