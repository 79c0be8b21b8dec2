"""Wheels of ``vllm`` whose server is the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import wheelkit

if TYPE_CHECKING:
    from pathlib import Path

# A vLLM whose server is the simulator; releases differ in the faults that it gets.
SERVER = """
import os, sys
FAULTS = {faults!r}
simulator = [os.environ["SIMULATOR"], "-m", "sparkwright.verify.simulator.main", "--boot-seconds", "0"]
os.execv(simulator[0], [*simulator, "--model", "vllm-{version}", "--no-engine", *FAULTS, *sys.argv[1:]])
"""


def vllm_wheel(folder: Path, version: str, *faults: str, tag: str = "py3-none-any") -> Path:
    """Build a wheel of ``vllm`` that starts a simulator with *faults*."""
    info = f"vllm-{version}.dist-info"
    words = [part for fault in faults for part in ("--fault", fault)]
    files = {
        "vllm/__init__.py": b"",
        "vllm/server.py": SERVER.format(faults=words, version=version).encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n\n".encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return wheelkit.pack(folder / f"vllm-{version}-{tag}.whl", wheelkit.with_record(files, info))
