"""Forms in which a finished run can be exported, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.digests import to_json
from sparkwright.base.errors import ConfigError, StorageError
from sparkwright.verify.export.timed import timed_requests
from sparkwright.verify.results import described, load_run, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sparkwright.engine.observations import Observation
    from sparkwright.verify.run import Run

_BENCHY = {".md": "llama-benchy.md", ".csv": "llama-benchy.csv", ".json": "llama-benchy.json"}


@dataclass(frozen=True)
class ExportRequest:
    """One export.

    Attributes:
        form: one of `FORMATS`.
        target: the file; for aiperf a folder.
        cells: parts of names or keys of the cells to export, for aiperf and guidellm; all if empty.
    """

    form: str
    target: Path
    cells: tuple[str, ...] = ()


def export_run(folder: Path, request: ExportRequest) -> tuple[Path, ...]:
    """Write the run in *folder* in another form; returns the files.

    Raises:
        ConfigError: there is no run, it has nothing for this form, or no cell has the name.
        StorageError: a file cannot be written.
    """
    run = load_run(folder)
    if request.form == "aiperf":
        rendered = _aiperf(run, _chosen(run, request))
        files = {request.target / name: data for name, data in rendered.items()}
    else:
        files = {request.target: _RENDERED[request.form](run, request)}
    for path, data in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{path.parent} could not be made",
                because=error.strerror or str(error),
                next_step="name another place with --output",
            ) from error
        replace_file(path, data)
    return tuple(files)


def _prometheus(run: Run, _: ExportRequest) -> bytes:
    from sparkwright.verify.export.prometheus import render_prometheus

    return render_prometheus(run)


def _guidellm(run: Run, request: ExportRequest) -> bytes:
    from sparkwright.verify.export.guidellm import render_guidellm

    return render_guidellm(run, _chosen(run, request))


def _csv(run: Run, _: ExportRequest) -> bytes:
    from sparkwright.verify.report import render_csv

    return render_csv(run).encode()


def _junit(run: Run, _: ExportRequest) -> bytes:
    from sparkwright.verify.report import render_junit

    return render_junit(run).encode()


def _json(run: Run, _: ExportRequest) -> bytes:
    return to_json(described(run)) + b"\n"


def _chosen(run: Run, request: ExportRequest) -> Sequence[Observation]:
    """Return the cells to export that have a request without a failure."""
    chosen = [
        seen
        for seen in run.observations
        if not request.cells or any(_is_meant(name, seen) for name in request.cells)
    ]
    if not any(timed_requests(seen, run.speed) for seen in chosen):
        raise ConfigError(
            "there is nothing to export",
            because=f"no cell with counted requests matches {', '.join(request.cells)}"
            if request.cells
            else "no cell has a counted request",
            next_step="see cells.csv for the names of cells",
        )
    return chosen


def _is_meant(name: str, seen: Observation) -> bool:
    return name in f"{seen.cell.check} {seen.cell.name}" or seen.cell.key == name


def _aiperf(run: Run, chosen: Sequence[Observation]) -> dict[str, bytes]:
    """Return a folder of aiperf's files for each cell."""
    from sparkwright.verify.export.aiperf import render_aiperf

    rendered: dict[str, bytes] = {}
    for number, seen in enumerate(chosen, 1):
        cell = seen.cell
        name = re.sub(r"[^\w.=+-]+", "-", f"{number:03}-{cell.check}-{cell.name}-{cell.arm}-{cell.boot}")
        rendered |= {f"{name}/{file}": data for file, data in render_aiperf(run, seen).items()}
    return rendered


def _benchy(run: Run, request: ExportRequest) -> bytes:
    from sparkwright.verify.protocol.results import protocol_files

    files, target = protocol_files(run), request.target
    if not files:
        raise ConfigError(
            "this run has no tests of llama-benchy's protocol",
            because="its cells have other prompts and loads, so that its figures are not comparable",
            next_step="run 'sparkwright verify --protocol llama-benchy' (or t1)",
        )
    if target.suffix not in _BENCHY:
        raise ConfigError(
            f"{target} has no form of llama-benchy", next_step=f"end its name with {', '.join(_BENCHY)}"
        )
    return files[_BENCHY[target.suffix]]


_RENDERED: Mapping[str, Callable[[Run, ExportRequest], bytes]] = {
    "prometheus": _prometheus,
    "guidellm": _guidellm,
    "llama-benchy": _benchy,
    "csv": _csv,
    "junit": _junit,
    "json": _json,
}
FORMATS = ("aiperf", *_RENDERED)
"""Names of the forms."""
