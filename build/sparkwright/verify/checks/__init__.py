"""The checks of a server, one per module; a module with a ``CHECK`` is found by being here.

`common` is the file to open first: it defines which observations are unfit for any conclusion. Modules
without a ``CHECK`` hold what several checks share.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.verify.check import Check, RegisteredCheck

__all__ = ["ALL", "REGISTERED", "checks_of", "discover"]


def discover(package: str, path: Iterable[str]) -> Mapping[str, RegisteredCheck]:
    """Return the checks in the modules of *package*, by the check's name, in the order of module names.

    Args:
        package: dotted name of the package.
        path: its ``__path__``.

    Raises:
        ConfigError: two modules define checks of one name.
    """
    found: dict[str, RegisteredCheck] = {}
    modules: dict[str, str] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(path)):
        registered = getattr(importlib.import_module(f"{package}.{module}"), "CHECK", None)
        if not isinstance(registered, RegisteredCheck):
            continue
        name = registered.check.name
        if name in found:
            raise ConfigError(
                f"two checks have the name {name!r}",
                because=f"both {modules[name]}.py and {module}.py of {package} define it",
                next_step="rename one of them",
            )
        found[name], modules[name] = registered, module
    return MappingProxyType(found)


REGISTERED: Mapping[str, RegisteredCheck] = discover(__name__, __path__)
"""Every check with its registration, by its name."""

ALL: Mapping[str, Check] = MappingProxyType({name: one.check for name, one in REGISTERED.items()})
"""Every check by its name."""


def checks_of(profile: str) -> tuple[str, ...]:
    """Return the names of the checks that the profile of this name runs, in order.

    Raises:
        UnknownNameError: no check lists this profile.
    """
    places = {name: one.profiles[profile] for name, one in REGISTERED.items() if profile in one.profiles}
    if not places:
        raise UnknownNameError(f"no check lists the profile {profile!r}", next_step="name the checks to run")
    return tuple(sorted(places, key=lambda name: (places[name], name)))
