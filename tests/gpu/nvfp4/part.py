"""One part in a process of its own: ``python -m nvfp4.part SPEC``."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from nvfp4.record import Recorder


def main() -> None:
    """Run the part that the specification names."""
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    record = Recorder(Path(spec["lines"]), spec["part"])
    try:
        importlib.import_module(f"nvfp4.{spec['part']}").run(spec, record)
    except Exception as error:
        record.check("part", ok=False, detail=f"{type(error).__name__}: {error}"[:800])
        raise
    record.write("end", name=spec["part"])


if __name__ == "__main__":
    main()
