"""The wheel that is taken where none is named, and the command that installs one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from sparkwright.lock.runtime import beside
from sparkwright.serve.built import BuiltWheel


def newest_wheel(series: Sequence[str]) -> BuiltWheel:
    """Return the wheel in ``dist/`` for this machine: the present build spec's, else the highest revision.

    Args:
        series: those that are wanted; any if empty.

    Raises:
        ConfigError: there is none.
    """
    from platform import machine

    from sparkwright.publish import dist_folder
    from sparkwright.serve.built import built_wheel, present_specs

    return built_wheel(dist_folder(Path()), machine(), series, present_specs(Path(), machine()))


def install_command(wheel: Path) -> str:
    """Return the command that installs *wheel* with its locked runtime, or the one that locks it."""
    from sparkwright.publish.evidence import stated_series

    runtime = beside(wheel)
    if not runtime.is_file():
        return f"sparkwright lock runtime --series {stated_series(wheel)}"
    folder, locked = shlex.quote(str(wheel.parent)), shlex.quote(str(runtime))
    return f"pip install --no-deps --require-hashes --find-links {folder} -r {locked}"
