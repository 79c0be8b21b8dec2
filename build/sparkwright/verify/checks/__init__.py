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
from sparkwright.verify.checks.common import Check

__all__ = ["ALL", "checks_of", "discover"]


def discover(package: str, path: Iterable[str]) -> Mapping[str, Check]:
    """Return the checks in the modules of *package*, which are in *path*, by name, in the order of modules.

    Raises:
        ConfigError: two modules define checks of one name.
    """
    found: dict[str, Check] = {}
    modules: dict[str, str] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(path)):
        check = getattr(importlib.import_module(f"{package}.{module}"), "CHECK", None)
        if not isinstance(check, Check):
            continue
        if check.name in found:
            raise ConfigError(
                f"two checks have the name {check.name!r}",
                because=f"both {modules[check.name]}.py and {module}.py of {package} define it",
                next_step="rename one of them",
            )
        found[check.name], modules[check.name] = check, module
    return MappingProxyType(found)


ALL: Mapping[str, Check] = discover(__name__, __path__)
"""Every check by its name."""


def checks_of(profile: str) -> tuple[str, ...]:
    """Return the names of the checks that the profile of this name runs, in order.

    Raises:
        UnknownNameError: no check lists this profile.
    """
    places = {name: check.profiles[profile] for name, check in ALL.items() if profile in check.profiles}
    if not places:
        raise UnknownNameError(f"no check lists the profile {profile!r}", next_step="name the checks to run")
    return tuple(sorted(places, key=lambda name: (places[name], name)))
