"""Compile Triton kernels for cards that are not here.

As a script it compiles the attention kernel over an NVFP4 cache and prints what each launch takes. That needs
a process of its own, as one that runs Triton's interpreter cannot compile::

    python compiling.py ARCH SYS_PATH LAUNCHES

SYS_PATH is a list in JSON, and LAUNCHES are pairs of a dtype's name and sizes of heads, in JSON too.
"""

from __future__ import annotations

import json
import re
import sys
import types
from typing import Any

WARP = 32


class Bench:
    """Triton without a card: compiles for *arch* what is launched, and keeps it."""

    def __init__(self) -> None:
        self.arch = 0
        self.compiled: list[Any] = []

    def prepare(self) -> None:
        """Put a driver in place that knows only the target, before vLLM is imported."""
        from triton.backends import backends
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction

        backends["nvidia"].driver.is_active = staticmethod(lambda: True)
        driver.set_active(
            types.SimpleNamespace(
                get_current_target=lambda: GPUTarget("cuda", self.arch, WARP),
                get_current_device=lambda: self.arch,  # a cache of kernels for each
                get_current_stream=lambda _: 0,
            )
        )
        launch = JITFunction.run

        def compile_only(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            del warmup
            kernel = launch(function, *args, grid=grid, warmup=True, **options)
            self.compiled.append((function, kernel))
            return kernel

        JITFunction.run = compile_only

    def pretend(self, arch: int) -> None:
        """Let vLLM's attention code think that it runs on a card of this architecture."""
        import vllm.v1.attention.backends.triton_attn  # noqa: F401 - what is imported later would not think so
        from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

        self.arch = arch

        class Pretended(Platform):
            _enum = PlatformEnum.CUDA
            device_name = device_type = "cuda"

            @classmethod
            def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
                del device_id
                return DeviceCapability(*divmod(arch, 10))

            @classmethod
            def get_device_name(cls, device_id: int = 0) -> str:
                del device_id
                return f"sm_{arch}"

            def num_compute_units(self, device_id: int = 0) -> int:
                del device_id
                return 132 if arch == 90 else 48  # of an H100 or H200, of a GB10

        platform = Pretended()
        for name, module in list(sys.modules.items()):
            if name.startswith("vllm.") and "current_platform" in vars(module):
                module.current_platform = platform


def launch(head_size: int, dtype: Any, queries: int) -> None:
    """Attend with *queries* of one request in four heads a KV head, as a step of serving does."""
    import torch
    from attending import Shape
    from pages import empty_cache
    from vllm.v1.attention.ops.triton_nvfp4_kv import nvfp4_code_views, nvfp4_segment_buffers
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import KVQuantMode

    query = torch.zeros(queries, 8, head_size, dtype=dtype)
    key, value = nvfp4_code_views(empty_cache(Shape(head_size=head_size), blocks=16))
    output, maxima, sums = nvfp4_segment_buffers(8, head_size, dtype, torch.device("cpu"))
    unified_attention(
        query,
        key,
        value,
        torch.zeros_like(query),
        cu_seqlens_q=torch.tensor([0, queries], dtype=torch.int32),
        max_seqlen_q=queries,
        seqused_k=torch.tensor([256], dtype=torch.int32),
        max_seqlen_k=256,
        softmax_scale=head_size**-0.5,
        causal=True,
        window_size=(-1, -1),
        block_table=torch.zeros(1, 16, dtype=torch.int32),
        softcap=0,
        q_descale=None,
        k_descale=torch.ones(()),
        v_descale=torch.ones(()),
        seq_threshold_3D=16,
        num_par_softmax_segments=16,
        softmax_segm_output=output,
        softmax_segm_max=maxima,
        softmax_segm_expsum=sums,
        kv_quant_mode=KVQuantMode.NVFP4,
    )


def converts() -> bool:
    """Return True if the tree has a decoder of its own for cards that convert E2M1."""
    from vllm.v1.attention.ops import triton_nvfp4_kv

    return hasattr(triton_nvfp4_kv, "nvfp4_converted")


def operand_bits(ttgir: str) -> list[int]:
    """Bits that a thread takes of one row of an operand of ``tt.dot``; other than 32, float32 goes wrong."""
    found = re.findall(r"x([a-z]+)(\d+), #ttg\.dot_op<{[^}]*kWidth = (\d+)}>", ttgir)
    return sorted({int(bits) * int(width) for _, bits, width in found})


def main() -> int:
    """Compile decode, drafts and prefill of all launches, and print what they take as JSON."""
    arch, path, wanted = (json.loads(word) for word in sys.argv[1:])
    sys.path[:] = path
    bench = Bench()
    bench.prepare()
    bench.pretend(arch)
    import torch
    from triton.runtime.errors import PTXASError

    taken = []
    for name, head_size in wanted:
        for queries in (1, 16, 2000):
            said = {"dtype": name, "head_size": head_size, "queries": queries, "refused": ""}
            bench.compiled.clear()
            try:
                launch(head_size, getattr(torch, name), queries)
            except PTXASError as error:
                taken.append(said | {"refused": str(error)[-500:]})
                continue
            for function, kernel in bench.compiled:
                if function.fn.__name__ != "kernel_unified_attention":
                    continue  # adds up segments, and decodes nothing
                pair = "bf16x2" if name == "bfloat16" else "f16x2"
                wanted_in = [f"fma.rn.{pair}", "prmt.b32"]
                if arch == 121 and converts():
                    wanted_in = ["cvt.rn.f16x2.e2m1x2", f"cvt.rn.{pair}.f32"]
                decoded = all(one in kernel.asm["ptx"] for one in wanted_in)
                taken.append(
                    said
                    | {
                        "shared": kernel.metadata.shared,
                        "split": kernel.src.constants.get((kernel.src.fn.arg_names.index("IS_3D"),), False),
                        "decoded": decoded,
                        "bits": operand_bits(kernel.asm["ttgir"]),
                    }
                )
    sys.stdout.write(json.dumps(taken) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
