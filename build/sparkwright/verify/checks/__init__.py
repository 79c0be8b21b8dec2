"""The checks of a server, one per module; a module with a ``CHECK`` is found by being here.

`common` is the file to open first: it defines which observations are unfit for any conclusion. Modules
without a ``CHECK`` hold what several checks share.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from sparkwright.verify.checks.common import Check

__all__ = ["ALL"]

_MODULES = (importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__))

ALL: Mapping[str, Check] = MappingProxyType(
    {module.CHECK.name: module.CHECK for module in _MODULES if hasattr(module, "CHECK")}
)
"""Every check by its name, which is its module's."""
