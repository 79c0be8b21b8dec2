"""Import modules of vLLM's that want packages which are not installed here."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class StandIn(ModuleType):
    """A module that is not installed here; has every class, and nothing in it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, loader=None, is_package=True)

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def imported(module: str, *missing: str) -> ModuleType:
    """Import *module* of vLLM's with stand-ins for what is *missing* here, for just as long."""
    sys.modules.update({name: StandIn(name) for name in missing})
    try:
        return importlib.import_module(module)
    finally:
        for name in missing:
            del sys.modules[name]


def import_platform_and_flashinfer_backend() -> ModuleType:
    """Import what wants compiled extensions, and the backend that wraps a package; returns the latter."""
    imported("vllm.platforms.cuda", "vllm._C_stable_libtorch")
    imported("vllm.utils.flashinfer")  # asks whether there is the package: without its stand-in
    parts = ("", ".decode", ".prefill", ".utils")
    return imported("vllm.v1.attention.backends.flashinfer", *(f"flashinfer{part}" for part in parts))
