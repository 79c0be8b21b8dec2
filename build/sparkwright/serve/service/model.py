"""A service: its options, the folders and files that it owns, and the record of its installation."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.errors import ConfigError, NewerFormatError, UnknownNameError
from sparkwright.recipes.recipe import PORT
from sparkwright.store.disk import write_atomically

Scope = Literal["system", "user"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_FORMAT = 1


class ServiceOptions(Model, frozen=True):
    """The choices of an installation, which its record keeps.

    Attributes:
        name: of the service, without ``sparkwright-``.
        recipe: name of a recipe that ships, or the path of the service's own copy of another one.
        program: absolute path of the command ``sparkwright``.
        run_as: user of a system's unit.
        models: folder of downloaded models, for ``HF_HOME``; empty for the service's own.
        sidecars_gib: memory that other programs will take beside the server.
    """

    name: str
    recipe: str
    scope: Scope
    program: str = ""
    use: str = ""
    settings: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = PORT
    run_as: str = "sparkwright"
    models: str = ""
    sidecars_gib: float = 0.0
    offline: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        _require_name(self.name)
        if not _USER.fullmatch(self.run_as):
            raise ConfigError(f"{self.run_as!r} is no name of a user", next_step="give one with --run-as")
        for word in (self.recipe, self.use, self.host, self.models, *self.settings):
            if any(not character.isprintable() for character in word):
                raise ConfigError(
                    f"{word!r} cannot stand in a unit",
                    because="it has control characters",
                    next_step="leave them out",
                )


def _require_name(name: str) -> None:
    """Refuse a name of a service that is none: files and folders are found, and removed, by it."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a service",
            because="it takes lower-case letters, digits, dots, dashes and underscores",
            next_step="give another one with --name, or one that 'sparkwright service status' lists",
        )


@dataclass(frozen=True)
class ServicePlaces:
    """The files and folders of one service.

    Attributes:
        variables: the file of further variables, such as ``HF_TOKEN``.
        recipe: the copy of a recipe of the user's own; the service's user may not see the original.
        sysusers: the file that declares the system's user (sysusers.d(5)).
        state: the folder of everything that is no configuration. Of a system's service, root owns it, the
            environments and the record: what root runs and trusts is not the service's to change.
        store: the service's own store: caches, logs and evidence.
        models: the service's own folder of downloaded models.
    """

    name: str
    scope: Scope
    unit: Path
    key: Path
    variables: Path
    recipe: Path
    sysusers: Path
    state: Path
    store: Path
    models: Path
    record: Path

    @classmethod
    def of(cls, name: str, scope: Scope, home: Path | None = None) -> ServicePlaces:
        """Return those of the service *name*, of a user with that *home*.

        Raises:
            ConfigError: it cannot be the name of a service.
        """
        _require_name(name)
        home = home or Path.home()
        system = scope == "system"
        user_config = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
        user_state = os.environ.get("XDG_STATE_HOME") or f"{home}/.local/state"
        config = Path("/etc" if system else user_config) / "sparkwright"
        units = Path("/etc/systemd/system" if system else f"{user_config}/systemd/user")
        state = Path("/var/lib" if system else user_state) / "sparkwright" / "services" / name
        return cls(
            name=name,
            scope=scope,
            unit=units / f"sparkwright-{name}.service",
            key=config / f"{name}.key",
            variables=config / f"{name}.env",
            recipe=config / f"{name}.toml",
            sysusers=Path("/etc/sysusers.d", f"sparkwright-{name}.conf"),
            state=state,
            store=state / "store",
            models=state / "huggingface",
            record=state / "service.json",
        )

    @property
    def unit_name(self) -> str:
        """Return the name of the unit."""
        return self.unit.name

    @property
    def written(self) -> tuple[Path, ...]:
        """Return the folders below its state that the service itself writes."""
        return (self.store, self.models)


class ServiceRecord(Model, frozen=True):
    """The record of an installed service.

    Attributes:
        channel: place of the channel that its wheels come from; empty for wheels that were named.
        current: the environment that it serves with, a folder's name.
        previous: the one before; empty if there is none.
    """

    options: ServiceOptions
    format: int = _FORMAT
    channel: str = ""
    current: str = ""
    previous: str = ""
    wheels: dict[str, str] = msgspec.field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the record to *path*, in one step."""
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self)) + b"\n")


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
