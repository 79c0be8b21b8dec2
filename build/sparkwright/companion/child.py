"""Have FlashInfer's generators describe kernels; runs in an environment with FlashInfer, and prints JSON.

Read from standard input: ``{"describe": bool, "modules": {name: [generator, arguments]}}``. Written, on the
last line: FlashInfer's version, the folders of this interpreter's headers and of tvm_ffi, the architecture
that the installed companion is for (empty without one that states it), and for each name the module's own
name and the finished file that FlashInfer would load (empty where it would compile). Where it is to be
described also the path of its build file for ninja, and if it embeds something that is made by other means.
"""

from __future__ import annotations

import importlib
import json
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer the question on standard input."""
    asked = json.load(sys.stdin)
    answer = {
        "version": str(importlib.import_module("flashinfer.version").__version__),
        "include": sysconfig.get_path("include"),
        "tvm_ffi": str(Path(str(importlib.import_module("tvm_ffi").__file__)).parent),
        "companion": _companion_arch(),
        "modules": {name: _answer(parts, asked["describe"]) for name, parts in asked["modules"].items()},
    }
    # On a line of its own: what is imported may have printed something before.
    print(f"\n{json.dumps(answer)}")  # noqa: T201 - the answer


def _companion_arch() -> str:
    try:
        text = distribution("flashinfer-jit-cache").read_text("sparkwright/companion.json")
    except PackageNotFoundError:
        return ""
    return str(json.loads(text or "{}").get("target", {}).get("arch", ""))


def _answer(parts: list[Any], describe: bool) -> dict[str, Any]:  # noqa: FBT001
    generator, arguments = parts
    module, _, function = generator.partition(":")
    values = {key: _value(value) for key, value in arguments.items()}
    spec = getattr(importlib.import_module(module), function)(**values)
    path = Path(spec.aot_path)
    answer: dict[str, Any] = {"name": spec.name, "found": str(path) if spec.is_aot and path.is_file() else ""}
    if describe:
        spec.write_ninja()
        answer["ninja"] = str(spec.ninja_path)
        answer["embeds"] = getattr(spec, "embedded_cubin_factory", None) is not None
    return answer


def _value(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(importlib.import_module("torch"), value.removeprefix("torch."))
    return value


if __name__ == "__main__":
    main()
