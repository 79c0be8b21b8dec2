"""Replace this process by another program, which keeps its id and so receives its signals."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

from sparkwright.base.process.run import not_started


def replace_process(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Run *argv* in place of this process.

    Args:
        argv: program and arguments.
        env: its whole environment.

    Raises:
        ToolError: the program does not exist, or may not be run.
    """
    try:
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606, TID251
    except OSError as error:
        raise not_started(tuple(argv), error) from error
