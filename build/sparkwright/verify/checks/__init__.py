"""The checks of a server; each `Check` in a module here is found by being there.

`common` is the file to open first: it defines which observations are unfit for any conclusion. Some modules
hold several checks that share most of their code, others only what several checks share.
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
    {one.name: one for module in _MODULES for one in vars(module).values() if isinstance(one, Check)}
)
"""Every check by its name."""
