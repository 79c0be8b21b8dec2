"""The series in hints: a printed command works on the same series as the command that printed it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from sparkwright.base.errors import SparkwrightError
from sparkwright.pipeline.checkout import Checkout

TAKE_SERIES = (
    "bisect", "carry edit", "carry new", "carry prove", "carry refresh", "carry show", "companion",
    "doctor", "lock bump", "lock check", "lock runtime", "merge", "nightly", "patchset bump",
    "recipe check", "recipe import", "recipe new", "rehearse", "serve", "service install",
    "service upgrade", "status", "wheel",
)  # fmt: skip
"""The commands with ``--series``."""
_END = r"(?![\w-])(?![^,;:'`\n]*{})"  # the option may stand anywhere up to the end of the command
_COMMAND = re.compile(rf"\b(sparkwright (?:{'|'.join(TAKE_SERIES)})){_END.format('--series')}")
_MAKE = re.compile(
    rf"\b(make (?:bisect|companion|nightly|plan|prove|rehearse|serve|status|test-upstream|wheel))"
    rf"{_END.format('SERIES=')}"
)


def with_series(text: str, checkout: Checkout) -> str:
    """Return *text* with the series of *checkout* in each command that has none, if it is not the default."""
    if checkout.is_default:
        return text
    text = _COMMAND.sub(rf"\1 --series {checkout.series}", text)
    return _MAKE.sub(rf"\1 SERIES={checkout.series}", text)


@contextlib.contextmanager
def keeping_series(checkout: Checkout) -> Iterator[None]:
    """Name the series of *checkout* in the next step of an error that leaves the block."""
    try:
        yield
    except SparkwrightError as error:
        error.next_step = with_series(error.next_step, checkout)
        raise
