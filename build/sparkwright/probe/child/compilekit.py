"""Compile Triton kernels for a card that is not here, as vLLM's own Python would launch them on it.

`pretend` comes before the first import of vLLM: from then on the platform is CUDA of one capability,
tensors "on the card" lie on the CPU, and a launch is recorded instead of run. `Launch.compile` then gives
what the kernel takes. Autotuned kernels are recorded once for each configuration that upstream's pruning
leaves.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

WARP = 32
NAMES = {
    80: "NVIDIA A100",
    90: "NVIDIA H100",
    100: "NVIDIA B200",
    120: "NVIDIA RTX PRO 6000",
    121: "NVIDIA GB10",
}
UNITS = {80: 108, 90: 132, 100: 148, 120: 188, 121: 48}  # multiprocessors
# Bytes of shared memory that a block may have (CUDA C++ Programming Guide, technical specifications).
LIMIT = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10, 121: 99 << 10}
# Compiled extensions that modules of vLLM insist on; these are empty.
EXTENSIONS = ("_C_stable_libtorch", "_C", "_moe_C_stable_libtorch", "_moe_C", "vllm_flash_attn._vllm_fa2_C")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Usage:
    """What one compiled kernel takes: bytes of *shared* memory a block, bytes of *spills* a thread."""

    shared: int
    registers: int
    spills: int


@dataclass(frozen=True, eq=False)
class Launch:
    """One configuration of one kernel.

    Attributes:
        function: the function that was launched.
        source: what Triton compiles: the function with its types, constants and alignments.
        options: number of warps and stages, and what else the compiler is given.
        tuning: the autotuned launch that this is one configuration of; 0 for none.
    """

    function: Any
    source: Any
    options: dict[str, Any]
    arch: int
    tuning: int = 0

    @property
    def name(self) -> str:
        """Return where the function is: module and name."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def key(self) -> str:
        """Return a digest of all that decides the compiled code, beside Triton's version."""
        text = f"{self.source.hash()} {sorted(self.options.items(), key=str)} {self.arch}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def constants(self) -> dict[str, Any]:
        """Return the constants by name, as far as they are plain values."""
        names = self.source.fn.arg_names
        values = {names[path[0]]: value for path, value in self.source.constants.items()}
        return {name: v for name, v in values.items() if isinstance(v, bool | int | str)}

    def compile(self) -> Usage:
        """Compile it, and return what it takes."""
        import triton
        from triton import knobs
        from triton.backends.compiler import GPUTarget

        knobs.compilation.always_compile = True  # what Triton's own cache has, ptxas does not speak of again
        target = GPUTarget("cuda", self.arch, WARP)
        with _listening() as said, contextlib.redirect_stdout(io.StringIO()):
            kernel = triton.compile(self.source, target=target, options=self.options)
        text = "".join(said)
        spilled, registers = _SPILLS.search(text), _REGISTERS.search(text)
        if spilled is None or registers is None:
            raise RuntimeError(f"ptxas did not say what the kernel takes: {text[:300]}")
        return Usage(kernel.metadata.shared, int(registers[1]), int(spilled[1]) + int(spilled[2]))


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    """Collect what ptxas says: Triton asks it for its figures, and throws them away."""
    from triton.backends.nvidia import compiler

    said: list[str] = []

    def run(command: Any, **options: Any) -> Any:
        log = options.get("stderr")
        done = subprocess.run(command, **options)  # noqa: PLW1510 - Triton says so itself
        if hasattr(log, "read"):
            log.seek(0)
            said.append(log.read())
        return done

    compiler.subprocess = types.SimpleNamespace(**{**vars(subprocess), "run": run})
    try:
        yield said
    finally:
        compiler.subprocess = subprocess


class Card:
    """The card that is pretended to be here, and what was launched on it."""

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self.launches: list[Launch] = []
        self._tunings = 0

    def taken(self) -> list[Launch]:
        """Return the launches since the last call."""
        found, self.launches = self.launches, []
        return found

    def target(self) -> Any:
        """Return it as Triton calls it."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, WARP)

    def record_launches(self) -> None:
        """Let Triton find a driver, and record launches where it would compile and run them."""
        from triton.backends import backends
        from triton.runtime import driver
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        backends["nvidia"].driver.is_active = staticmethod(lambda: True)
        driver.set_active(
            types.SimpleNamespace(
                get_current_target=self.target,
                get_current_device=lambda: self.arch,  # a cache of kernels for each
                get_current_stream=lambda _: 0,
                get_active_torch_device=lambda: "cpu",
                get_device_interface=lambda: None,
                get_benchmarker=lambda: None,
            )
        )
        run, tuning = JITFunction.run, [0]

        def recorded(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            del warmup
            return run(function, *args, grid=grid, warmup=True, **options)

        def compile_later(function: Any, _: Any, signature: Any, __: Any, constants: Any, *rest: Any) -> None:
            options, attributes, *_ = (
                rest  # without an entry in Triton's cache the next launch comes here again
            )
            source = function.ASTSource(function, signature, constants, attributes)
            self.launches.append(Launch(function, source, options.__dict__, self.arch, tuning[0]))

        def every_configuration(tuner: Any, *args: Any, **options: Any) -> None:
            tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
            self._tunings += 1
            tuning[0] = self._tunings
            try:
                for config in tuner.prune_configs(options):
                    tuner.best_config = config  # some launchers look at it
                    tuner.fn.run(*args, **{**options, **config.all_kwargs()})
            finally:
                tuning[0] = 0

        JITFunction.run, JITFunction._do_compile = recorded, compile_later  # noqa: SLF001 - where it compiles
        Autotuner.run = every_configuration

    def stand_in(self) -> None:
        """Make vLLM's platform CUDA with this card; before anything else of vLLM is imported."""
        for name in EXTENSIONS:
            sys.modules[f"vllm.{name}"] = types.ModuleType(f"vllm.{name}")
        import vllm.platforms
        from vllm.platforms.cuda import CudaPlatformBase
        from vllm.platforms.interface import DeviceCapability

        card = self

        class Platform(CudaPlatformBase):  # type: ignore[misc, valid-type]
            device_type = "cpu"  # where tensors are made that no other tensor gives a device

            @classmethod
            def get_device_capability(cls, device_id: int = 0) -> Any:
                del device_id
                return DeviceCapability(*divmod(card.arch, 10))

            @classmethod
            def get_device_name(cls, device_id: int = 0) -> str:
                del device_id
                return NAMES[card.arch]

            @classmethod
            def num_compute_units(cls, device_id: int = 0) -> int:
                del device_id
                return UNITS[card.arch]

            @classmethod
            def get_device_total_memory(cls, device_id: int = 0) -> int:
                del device_id
                return 120 << 30

        vllm.platforms.current_platform = Platform()


def pretend(arch: int = 121) -> Card:
    """Return a card of *arch* that launches are recorded on; called before vLLM is imported."""
    card = Card(arch)
    card.record_launches()
    card.stand_in()
    return card
