"""The evidence kept of a server that dies or stops responding: log, counters, exit status, host."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import SparkwrightError
from sparkwright.engine.server.failures import diagnose, tail

_LINES = 400
_SECONDS = 15.0
# Programs whose words are kept where they may be run; many hosts show the kernel's to root alone.
_PROGRAMS = {
    "dmesg.txt": ("dmesg", "--ctime", "--level=emerg,alert,crit,err,warn"),
    "nvidia-smi.txt": ("nvidia-smi", "-q", "-d", "CLOCK,POWER,TEMPERATURE,MEMORY,PERFORMANCE,ECC"),
}


@dataclass(frozen=True)
class Incident:
    """A server that died or does not respond.

    Attributes:
        reason: the observed failure.
        status: its exit status, negative for a signal; `None` while it runs.
        metrics: its last ``/metrics``, or empty.
        seconds: seconds that it ran.
    """

    reason: str
    status: int | None
    log: str
    metrics: str
    argv: tuple[str, ...]
    seconds: float


def keep_evidence(folder: Path, incident: Incident) -> Path:
    """Write evidence of *incident* into a new folder under *folder*; returns that folder.

    Unreadable parts do not keep the rest from being written: ``incident.json`` lists them as missing.
    """
    place = _fresh(folder)
    cause = diagnose(incident.log, incident.status)
    _write(place / "log-tail.txt", tail(incident.log, lines=_LINES))
    missing = [] if incident.metrics else ["metrics.txt"]
    if incident.metrics:
        _write(place / "metrics.txt", incident.metrics)
    for name, command in _PROGRAMS.items():
        if not _keep_output(place / name, command):
            missing.append(name)
    for name in ("meminfo", "loadavg"):
        try:
            _write(place / f"{name}.txt", Path("/proc", name).read_text(encoding="utf-8"))
        except OSError:
            missing.append(f"{name}.txt")
    summary = {
        "reason": incident.reason,
        "cause": cause.name,
        "because": cause.because,
        "exit_status": incident.status,
        "argv": incident.argv,
        "seconds": round(incident.seconds, 3),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "missing": missing,
    }
    _write(place / "incident.json", json.dumps(summary, indent=1) + "\n")
    return place


def _fresh(folder: Path) -> Path:
    for number in range(1, 10_000):
        place = folder / f"incident-{number}"
        with contextlib.suppress(FileExistsError):
            place.mkdir(parents=True)
            return place
    raise FileExistsError(folder)


def _keep_output(path: Path, command: tuple[str, ...]) -> bool:
    from sparkwright.base.process import run

    if shutil.which(command[0]) is None:
        return False
    try:
        done = run(command, timeout=_SECONDS)
    except SparkwrightError:
        return False
    _write(path, done.stdout.decode(errors="replace"))
    return True


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")
