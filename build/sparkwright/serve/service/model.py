"""A service: its options, the folders and files that it owns, and the record of its installation."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.errors import ConfigError, NewerFormatError, UnknownNameError

Scope = Literal["system", "user"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_FORMAT = 1
IMAGE_UID = 10_001
"""The user id that the image itself names."""


@dataclass(frozen=True)
class ServiceOptions:
    """The choices of an installation.

    Attributes:
        name: of the service, without ``sparkwright-``.
        recipe: name of a recipe that ships, or the path of the service's own copy of another one.
        program: absolute path of the command ``sparkwright``.
        run_as: user of a system's unit.
        models: folder of downloaded models, for ``HF_HOME``; empty for the service's own.
        recipe_text: content of that copy; empty for a recipe that ships.
    """

    name: str
    recipe: str
    scope: Scope
    program: Path
    use: str = ""
    settings: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    run_as: str = "sparkwright"
    models: str = ""
    offline: bool = False
    force: bool = False
    image: str = "localhost/sparkwright:latest"
    uid: int = IMAGE_UID
    recipe_text: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot be the name of a service",
                because="it takes lower-case letters, digits, dots, dashes and underscores",
                next_step="give another one with --name",
            )
        if not _USER.fullmatch(self.run_as):
            raise ConfigError(f"{self.run_as!r} is no name of a user", next_step="give one with --run-as")
        for word in (self.recipe, self.use, self.host, self.models, self.image, *self.settings):
            if any(not character.isprintable() for character in word):
                raise ConfigError(f"{word!r} cannot stand in a unit", because="it has control characters")


@dataclass(frozen=True)
class ServicePlaces:
    """The files and folders of one service.

    Attributes:
        root: put before every path, for images and tests; ``/`` otherwise.
    """

    name: str
    scope: Scope
    root: Path = Path("/")
    home: Path = field(default_factory=Path.home)

    @property
    def unit_name(self) -> str:
        """Return the name of the unit."""
        return f"sparkwright-{self.name}.service"

    @property
    def unit(self) -> Path:
        """Return the unit's file."""
        folder = "/etc/systemd/system" if self.scope == "system" else self._config("systemd/user")
        return self._under(folder) / self.unit_name

    @property
    def config(self) -> Path:
        """Return the folder of the key, the variables and the compose file."""
        return self._under("/etc/sparkwright" if self.scope == "system" else self._config("sparkwright"))

    @property
    def key(self) -> Path:
        """Return the file of the API key."""
        return self.config / f"{self.name}.key"

    @property
    def variables(self) -> Path:
        """Return the file of further variables, such as ``HF_TOKEN``."""
        return self.config / f"{self.name}.env"

    @property
    def recipe(self) -> Path:
        """Return the copy of a recipe of the user's own; the service's user may not see the original."""
        return self.config / f"{self.name}.toml"

    @property
    def compose(self) -> Path:
        """Return the compose file."""
        return self.config / f"{self.name}.compose.yaml"

    @property
    def sysusers(self) -> Path:
        """Return the file that declares the system's user (sysusers.d(5))."""
        return self._under("/etc/sysusers.d") / f"sparkwright-{self.name}.conf"

    @property
    def state(self) -> Path:
        """Return the folder of everything that is no configuration.

        Of a system's service, root owns it, the environments and the record: what root runs and trusts is
        not the service's to change.
        """
        if self.scope == "system":
            return self._under("/var/lib/sparkwright") / "services" / self.name
        data = os.environ.get("XDG_STATE_HOME") or str(self.home / ".local/state")
        return self._under(data) / "sparkwright" / "services" / self.name

    @property
    def store(self) -> Path:
        """Return the service's own store: caches, logs and evidence."""
        return self.state / "store"

    @property
    def models(self) -> Path:
        """Return the service's own folder of downloaded models."""
        return self.state / "huggingface"

    @property
    def written(self) -> tuple[Path, ...]:
        """Return the folders below its state that the service itself writes."""
        return (self.store, self.models, self.health.parent)

    @property
    def record(self) -> Path:
        """Return the record of the installation."""
        return self.state / "service.json"

    @property
    def health(self) -> Path:
        """Return the file of the engine's state, which the watchdog writes."""
        return self.state / "health" / "state.json"

    def _config(self, below: str) -> str:
        return str(Path(os.environ.get("XDG_CONFIG_HOME") or self.home / ".config") / below)

    def _under(self, path: str) -> Path:
        return self.root / path.lstrip("/")


class ServiceRecord(Model, frozen=True):
    """The record of an installed service.

    Attributes:
        models: folder of downloaded models; empty for the service's own.
        channel: place of the channel that its wheels come from; empty for wheels that were named.
        current: the environment that it serves with, a folder's name.
        previous: the one before; empty if there is none.
    """

    name: str
    scope: Scope
    recipe: str
    format: int = _FORMAT
    use: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    models: str = ""
    channel: str = ""
    current: str = ""
    previous: str = ""
    wheels: dict[str, str] = msgspec.field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the record to *path*, in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        part.replace(path)


def load_record(places: ServicePlaces) -> ServiceRecord:
    """Return the record of an installed service.

    Raises:
        UnknownNameError: it is not installed.
        ConfigError: its record is broken.
        NewerFormatError: it was written by a newer sparkwright.
    """
    path = places.record
    try:
        data = path.read_bytes()
        number = json.loads(data).get("format", 0)
        if number > _FORMAT:
            raise NewerFormatError(
                f"{path} cannot be read", because=f"it has format {number}", next_step="update sparkwright"
            )
        return decode_json(data, ServiceRecord)
    except FileNotFoundError as error:
        raise UnknownNameError(
            f"there is no service {places.name!r} of the {places.scope}",
            because=f"{path} does not exist",
            next_step="sparkwright service install RECIPE, or the other of --user and --system",
        ) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read", because=str(error)) from error
