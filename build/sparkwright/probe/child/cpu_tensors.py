"""Let code for a CUDA device run on CPU tensors, as far as it takes to see what it launches."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch
from compilekit import LIMIT, NAMES, UNITS, WARP
from torch.overrides import TorchFunctionMode

OPS = ("_C", "_moe_C", "_C_cache_ops", "_C_stable_libtorch", "_vllm_fa2_C")  # namespaces of extensions
RANDOM = {torch.randn, torch.rand}
MEMORY = 120 << 30


def elsewhere(value: Any) -> Any:
    """Return the CPU instead of a CUDA device, and anything else as it is."""
    on_card = isinstance(value, str | torch.device) and str(value).startswith("cuda")
    return torch.device("cpu") if on_card else value


class OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU instead of a CUDA device; random ones are zero, which takes no time."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.is_cuda.__get__:
            return True
        if function is torch.Tensor.cuda:
            return args[0]
        named = dict(kwargs or {})
        if function is torch.device:
            return function(*args, **named)
        if function in RANDOM:
            function = torch.zeros
            named.pop("generator", None)
        if named.get("pin_memory"):
            del named["pin_memory"]
        return function(*map(elsewhere, args), **{name: elsewhere(value) for name, value in named.items()})


class Stream:
    """A stream, an event or a device, as far as wrappers use them: it does nothing."""

    cuda_stream = stream_id = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def move_tensors(arch: int) -> None:
    """Put tensors of a CUDA device onto the CPU; streams, seeds and missing ops do nothing."""
    OnCpu().__enter__()
    properties = types.SimpleNamespace(
        name=NAMES[arch], major=arch // 10, minor=arch % 10, multi_processor_count=UNITS[arch],
        total_memory=MEMORY, shared_memory_per_block_optin=LIMIT[arch], warp_size=WARP, gcnArchName="",
    )  # fmt: skip
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "set_device": None,
        "synchronize": None, "empty_cache": None, "manual_seed": None, "manual_seed_all": None,
        "get_device_properties": properties, "get_device_capability": divmod(arch, 10),
        "get_device_name": properties.name, "device_index": Stream(),
        "current_accelerator": torch.device("cpu"), "set_device_index": None,
    }  # fmt: skip
    replaced: dict[str, Any] = dict.fromkeys(
        ("current_stream", "Stream", "Event", "device", "stream"), Stream
    )
    replaced |= {name: lambda *_, answer=answer, **__: answer for name, answer in answers.items()}
    for name, value in replaced.items():
        for module in (torch.cuda, torch.accelerator):
            if hasattr(module, name):
                setattr(module, name, value)
    torch.set_default_device = lambda _: None  # a test's wish would last into the next one
    namespace = torch._ops._OpNamespace  # noqa: SLF001 - where ops are looked up
    namespace.__getattr__ = op_or_none(namespace.__getattr__)
    torch.library.register_fake = if_there(torch.library.register_fake)


def op_or_none(find: Any) -> Any:
    """Return how ops are found: by *find*, or one that does nothing for an extension that is not here."""

    def found(namespace: Any, name: str) -> Any:
        try:
            return find(namespace, name)
        except AttributeError:
            if namespace.name not in OPS or name.startswith("__"):
                raise
            return lambda *_, **__: None

    return found


def if_there(register: Any) -> Any:
    """Return *register*, which does nothing for an op that is not here."""

    def register_fake(op: Any, function: Any = None, **options: Any) -> Any:
        def of(implementation: Any) -> Any:
            with contextlib.suppress(RuntimeError):
                register(op, implementation, **options)
            return implementation

        return of if function is None else of(function)

    return register_fake
