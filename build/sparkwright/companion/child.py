"""Have FlashInfer's generators describe kernels; runs in an environment with FlashInfer, and prints JSON.

Read from standard input: ``{name: [generator, arguments]}``. Written, on the last line: FlashInfer's version,
the folders of this interpreter's headers and of tvm_ffi, and for each name the module's own name, the path of
its build file for ninja, and if it embeds something that is made by other means.
"""

from __future__ import annotations

import importlib
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer the question on standard input."""
    asked = json.load(sys.stdin)
    answer = {
        "version": str(importlib.import_module("flashinfer.version").__version__),
        "include": sysconfig.get_path("include"),
        "tvm_ffi": str(Path(str(importlib.import_module("tvm_ffi").__file__)).parent),
        "modules": {name: _answer(*parts) for name, parts in asked.items()},
    }
    # On a line of its own: what is imported may have printed something before.
    print(f"\n{json.dumps(answer)}")  # noqa: T201 - the answer


def _answer(generator: str, arguments: dict[str, Any]) -> dict[str, Any]:
    module, _, function = generator.partition(":")
    values = {key: _value(value) for key, value in arguments.items()}
    spec = getattr(importlib.import_module(module), function)(**values)
    spec.write_ninja()
    embeds = getattr(spec, "embedded_cubin_factory", None) is not None
    return {"name": spec.name, "ninja": str(spec.ninja_path), "embeds": embeds}


def _value(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(importlib.import_module("torch"), value.removeprefix("torch."))
    return value


if __name__ == "__main__":
    main()
