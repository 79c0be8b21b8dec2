"""The package indexes of the user's pip configuration, and upstream's index of wheels by commit.

The order is pip's own (its user guide, "Configuration"): the machine's files, the user's, the
virtual environment's, the one that ``PIP_CONFIG_FILE`` names, then ``PIP_*`` variables. Of each
file the sections ``[global]`` and ``[download]`` count. As with pip, what crosses the network is
encrypted unless ``trusted-host`` names the host; unlike with pip, certificates are checked there too.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import ConfigError

_MACHINE_FILE = Path("/etc/pip.conf")
_SECTIONS = ("global", "download")
_KEYS = ("index-url", "extra-index-url", "cert", "trusted-host")
_UPSTREAM_WHEELS = "https://wheels.vllm.ai"
# CUDA 13, which knows the card. Upstream's pages have it under this name also where it is the main variant.
_UPSTREAM_VARIANT = "cu130"


@dataclass(frozen=True)
class IndexSettings:
    """Addresses and limits for fetching.

    Attributes:
        index_url: the index's base address; empty for the library's default.
        cert: file or folder of certificates to trust; empty for the system's choice.
        trusted_hosts: hosts, with or without a port, that may be asked without encryption.
        offline: fetch nothing, and report what is missing instead.
        timeout_s: how long a connection may be silent, in seconds.
        attempts: tries in a row that may bring nothing before giving up.
        backoff_s: wait before the second try, in seconds; it doubles up to half a minute.
        upstream_wheels: address of upstream's index of wheels by commit.
        upstream_variant: the CUDA variant that is taken from there; empty for upstream's main one.
    """

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    cert: str = ""
    trusted_hosts: tuple[str, ...] = ()
    offline: bool = False
    timeout_s: float = 60.0
    attempts: int = 5
    backoff_s: float = 1.0
    upstream_wheels: str = _UPSTREAM_WHEELS
    upstream_variant: str = _UPSTREAM_VARIANT


def read_settings(environment: Mapping[str, str] | None = None, *, offline: bool = False) -> IndexSettings:
    """Return the settings that pip would use under *environment* (ours by default).

    Raises:
        ConfigError: one of pip's files cannot be read, or the variant of upstream's wheels is no name.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, str] = {}
    for path in pip_files(environment):
        values.update(_read_file(path))
    for key in _KEYS:
        if value := environment.get("PIP_" + key.upper().replace("-", "_")):
            values[key] = value
    variant = environment.get("SPARKWRIGHT_UPSTREAM_VARIANT", _UPSTREAM_VARIANT)
    if not re.fullmatch(r"[a-z0-9]*", variant):
        raise ConfigError(
            f"{variant!r} is no variant of upstream's wheels",
            next_step="set SPARKWRIGHT_UPSTREAM_VARIANT to a name such as cu130, or to nothing",
        )
    return IndexSettings(
        index_url=values.get("index-url", "").strip(),
        extra_index_urls=tuple(values.get("extra-index-url", "").split()),
        cert=values.get("cert", "").strip(),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        offline=offline,
        upstream_wheels=environment.get("SPARKWRIGHT_UPSTREAM_WHEELS") or _UPSTREAM_WHEELS,
        upstream_variant=variant,
    )


def pip_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the configuration files of pip, weakest first, whether they exist or not."""
    chosen = environment.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:  # pip's way to say "no file at all"
        return
    for folder in environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep):
        yield Path(folder, "pip", "pip.conf")
    yield _MACHINE_FILE
    if not (chosen and Path(chosen).is_file()) and (home := environment.get("HOME")):
        yield Path(home, ".pip", "pip.conf")
        yield Path(environment.get("XDG_CONFIG_HOME") or Path(home, ".config"), "pip", "pip.conf")
    yield Path(environment.get("VIRTUAL_ENV") or sys.prefix, "pip.conf")
    if chosen:
        yield Path(chosen)


def _read_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, PermissionError) as error:
        raise ConfigError(
            f"pip's configuration {path} could not be read", because=str(error).replace("\n", " "),
            next_step="correct it, or set PIP_CONFIG_FILE to another file",
        ) from error  # fmt: skip
    found: dict[str, str] = {}
    for section in _SECTIONS:
        if parser.has_section(section):
            found |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    return {key: found[key] for key in _KEYS if key in found}
