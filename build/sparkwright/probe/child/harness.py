r"""Run one probe against one tree, in this process, and write the verdict as JSON.

    python harness.py --tree TREE --probe probe.py --report report.json \
        [--metadata FOLDER] [--triton interpret]

Runs inside the probe environment, where sparkwright itself is not installed: standard
library only. Exit status is 0 whenever a report was written, whatever the verdict.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
import types
from pathlib import Path


def enable_triton_interpreter() -> None:
    """Let Triton kernels run on CPU tensors.

    vLLM replaces Triton by a placeholder when no driver is active, and modules that tune
    themselves ask the active one for its target while they are imported. A driver that
    can do nothing satisfies both; the interpreter never talks to it.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import backends
    from triton.runtime import driver

    backends["nvidia"].driver.is_active = staticmethod(lambda: True)
    driver.set_active(types.SimpleNamespace())


def run_probe(path: Path) -> tuple[str, str]:
    """Import *path*, call its ``probe()`` and return (verdict, message)."""
    from probekit import Defect

    try:
        spec = importlib.util.spec_from_file_location("probe_under_test", path)
        if spec is None or spec.loader is None:
            return "error", f"{path} is not a Python file"
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up there
        spec.loader.exec_module(module)
        module.probe()
    except Defect as found:
        return "fails", str(found)
    except BaseException:  # noqa: BLE001 - a probe that cannot run must be reported, however it died
        return "error", traceback.format_exc(limit=-12)
    return "passes", ""


def loaded_files(tree: Path) -> tuple[list[str], list[str]]:
    """Files of *tree* that were imported, and vllm modules that came from elsewhere."""
    inside, outside = set(), set()
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if not origin:
            continue
        file = Path(origin).resolve()
        if file.is_relative_to(tree):
            inside.add(file.relative_to(tree).as_posix())
        elif name == "vllm" or name.startswith("vllm."):
            outside.add(f"{name} from {file}")
    return sorted(inside), sorted(outside)


def main() -> int:
    """Parse the command line, run the probe, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--probe", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--metadata", type=Path, action="append", default=[], help="holds a dist-info folder")
    parser.add_argument("--triton", choices=("off", "interpret"), default="off")
    args = parser.parse_args()

    tree = args.tree.resolve()
    sys.path[:0] = [str(tree), str(Path(__file__).parent), *map(str, args.metadata)]
    started = time.monotonic()
    try:
        if args.triton == "interpret":
            enable_triton_interpreter()
    except ImportError:
        verdict, message = "error", traceback.format_exc(limit=-3)
    else:
        verdict, message = run_probe(args.probe)
    inside, outside = loaded_files(tree)
    if outside and verdict != "error":
        verdict, message = "error", f"vllm was not imported from the tree: {outside[0]}"
    report = {
        "verdict": verdict,
        "message": message,
        "loaded": inside,
        "seconds": round(time.monotonic() - started, 3),
        "peak-mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    status = main()
    # Libraries under test may leave threads and at-exit hooks behind; the report is written.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
