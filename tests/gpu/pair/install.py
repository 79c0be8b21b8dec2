"""Is the installed vLLM the wheel that it is taken for, file by file?

`RECORD` (PEP 376, PEP 427) lists the wheel's files with their SHA-256. Every listed file must
be there and match, and no Python file may lie beside them that the wheel does not have: what
is imported is then what was built.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

_UPSTREAM = "upstream-wheel"  # who provides a binary that was taken from upstream's own wheel


@dataclass(frozen=True)
class Check:
    """One thing that was checked, and what was found."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Installed:
    """The one installed vLLM."""

    root: Path
    info: Path
    version: str
    record: dict[str, str]  # digest by path, as in RECORD


def digest(path: Path) -> str:
    """SHA-256 of a file as ``RECORD`` spells it: urlsafe base64 without padding."""
    with path.open("rb") as stream:
        raw = hashlib.file_digest(stream, "sha256").digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def find(path: list[str] | None = None) -> Installed:
    """The installed vLLM, on `sys.path` or on *path*."""
    places = {} if path is None else {"path": path}
    found = list(metadata.distributions(name="vllm", **places))
    if len(found) != 1:
        stated = ", ".join(str(one.version) for one in found) or "none"
        raise LookupError(f"exactly one vllm must be installed; found: {stated}")
    root = Path(str(found[0].locate_file(""))).resolve()
    info = root / f"vllm-{found[0].version}.dist-info"
    with (info / "RECORD").open(encoding="utf-8", newline="") as stream:
        record = {row[0]: row[1] for row in csv.reader(stream) if row[1]}
    return Installed(root, info, found[0].version, record)


def inspect(
    installed: Installed,
    version: str,
    carries: list[str],
    pruned: list[str],
    *,
    left_out: list[str] | None = None,
    native: list[str] | None = None,
) -> list[Check]:
    """Check an installation."""
    return [
        Check("version", installed.version == version, f"{installed.version}, asked for {version}"),
        _record_check(installed, pruned),
        _stray_check(installed),
        _carries_check(installed, carries, left_out or []),
        _native_check(installed, native or []),
    ]


def carried_files(installed: Installed) -> dict[str, str]:
    """Digest by path of the wheel's files that carries changed; empty for a stock wheel."""
    paths = sorted({path for carry in _carries(installed) for path in _shipped(carry)})
    return {path: installed.record.get(path, "not in RECORD") for path in paths}


def native_binaries(installed: Installed) -> dict[str, str]:
    """Digest by path of the binaries that are not upstream's; empty for a stock wheel."""
    ours = [entry["member"] for entry in _providers(installed) if entry["provider"] != _UPSTREAM]
    return {path: installed.record.get(path, "not in RECORD") for path in sorted(ours)}


def _record_check(installed: Installed, pruned: list[str]) -> Check:
    missing, wrong, left_out = [], [], 0
    for path, stated in installed.record.items():
        file = installed.root / path
        if file.is_file():
            if digest(file) != stated:
                wrong.append(path)
        elif path.startswith(tuple(pruned)):
            left_out += 1
        else:
            missing.append(path)
    held = len(installed.record) - left_out - len(missing) - len(wrong)
    detail = f"{held} files as RECORD says, {left_out} left out on purpose"
    if missing or wrong:
        detail += f"; missing: {missing[:5]}; different: {wrong[:5]}"
    return Check("files are the wheel's", held > 0 and not missing and not wrong, detail)


def _stray_check(installed: Installed) -> Check:
    files = {file.relative_to(installed.root).as_posix() for file in (installed.root / "vllm").rglob("*.py")}
    stray = sorted(files - installed.record.keys())
    return Check(
        "no other Python files", bool(files) and not stray, f"{len(files)} in all; stray: {stray[:5]}"
    )


def _stated(installed: Installed, name: str) -> Any:
    """Return what the wheel says of itself in the file called *name*; `None` where it says nothing."""
    file = installed.info / "sparkwright" / name
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _carries(installed: Installed) -> list[dict[str, Any]]:
    carries: list[dict[str, Any]] = (_stated(installed, "carries.json") or {"carries": []})["carries"]
    return carries


def _providers(installed: Installed) -> list[dict[str, Any]]:
    providers: list[dict[str, Any]] = _stated(installed, "providers.json") or []
    return providers


def _shipped(carry: dict[str, Any]) -> list[str]:
    """The carry's paths that a wheel has: none in a dependency's source, and none that is only compiled."""
    own = [] if carry.get("source") else carry["paths"]
    return [path for path in own if path.startswith("vllm/")]


def _carries_check(installed: Installed, wanted: list[str], left_out: list[str]) -> Check:
    carries = {str(carry["name"]): carry for carry in _carries(installed)}
    outcomes = {name: str(carry["outcome"]) for name, carry in carries.items()}
    files = carried_files(installed)
    compiled = [name for name in wanted if name in carries and not _shipped(carries[name])]
    ok = (
        outcomes == dict.fromkeys(wanted, "applied") | dict.fromkeys(left_out, "left-out")
        and all(carries[name]["paths"] for name in wanted)
        and all(path in installed.record for path in files)
        and (not compiled or bool(native_binaries(installed)))
    )
    asked = f"asked for {wanted or 'none'}" + (f" without {left_out}" if left_out else "")
    return Check("carries", ok, f"{outcomes or 'none'} in {len(files)} files; {asked}")


def _native_check(installed: Installed, wanted: list[str]) -> Check:
    """The binaries that the wheel calls ours are those asked for, with the digests that it states."""
    ours = native_binaries(installed)
    stated = {entry["member"]: str(entry["sha256"]) for entry in _providers(installed)}
    names = sorted(Path(path).name.partition(".")[0] for path in ours)
    odd = [path for path, listed in ours.items() if _hexadecimal(listed) != stated[path]]
    detail = f"{names or 'none'} compiled by us, {len(stated) - len(ours)} from upstream's wheel"
    if odd:
        detail += f"; RECORD has another digest for {odd}"
    return Check("native binaries", names == sorted(wanted) and not odd, detail)


def _hexadecimal(listed: str) -> str:
    """A digest of ``RECORD`` as hexadecimal digits."""
    encoded = listed.removeprefix("sha256=")
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
