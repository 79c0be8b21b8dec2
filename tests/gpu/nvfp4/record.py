"""Lines of results, checks and tables: what every part leaves behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Recorder", "markdown", "read"]


@dataclass
class Recorder:
    """Appends JSON lines of one part to a file, each at once.

    A line has a ``kind``: ``check`` (with ``ok``), ``goal`` (with ``met``: wished for, not required),
    ``fact``, or a part's own kind of measurement.
    """

    file: Path
    part: str
    started: float = field(default_factory=time.monotonic)

    def write(self, kind: str, **fields: Any) -> None:
        """Append a line."""
        line = {"part": self.part, "kind": kind, "at": round(time.monotonic() - self.started, 2), **fields}
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def check(self, name: str, ok: object, detail: str = "") -> bool:
        """A requirement; the run fails without it."""
        self.write("check", name=name, ok=bool(ok), detail=detail)
        return bool(ok)

    def goal(self, name: str, met: object, detail: str = "") -> None:
        """An aim; the run passes without it."""
        self.write("goal", name=name, met=bool(met), detail=detail)

    def case(self, name: str, run: Callable[[], None]) -> None:
        """Run one case; what it raises is a failed check, and the next case still runs."""
        try:
            run()
        except Exception as error:  # noqa: BLE001 - reported as this case's failure
            text = f"{type(error).__name__}: {error}"
            self.check(name, ok=False, detail=text[:600])


def read(file: Path) -> list[dict[str, Any]]:
    """All lines of *file*; none where it does not exist."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
