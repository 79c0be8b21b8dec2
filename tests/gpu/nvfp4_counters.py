#!/usr/bin/env python3
"""Launch each timed case of `nvfp4_split.py` once, over an NVFP4 cache, for a profiler to count.

`scripts/gb10_model.py collect` runs this under ``ncu`` and takes the lines in JSON: the card's name, and the
name of each case in the order of the launches. Kernels are compiled at their first launch, which is the only
one::

    ncu --csv … python3 tests/gpu/nvfp4_counters.py --tree TREE
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from nvfp4.layer import BLOCK, Layer, Step, load
from nvfp4.rig import say
from nvfp4_split import timed

HEADS = 128


def main() -> int:
    """Launch every case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True, help="the patched tree, or its three files")
    args = parser.parse_args()
    reader, kv = load(args.tree)
    say(json.dumps({"device": torch.cuda.get_device_name()}))
    cases = [case for case in timed() if case.size == HEADS and max(case.queries) <= 16]
    blocks = max(sum(-(-length // BLOCK) for length in case.lengths) for case in cases) + 64
    layer = Layer(reader, kv, cases[0], blocks, plain=False, seed=1)
    for case in cases:
        step = Step(case, blocks, 2)
        layer.attend(case, step, torch.zeros_like(step.query))
        torch.cuda.synchronize()
        say(json.dumps({"case": str(case)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
