"""What a probe may import besides the code under test.

A probe states what healthy code does with `expect`. Only a broken expectation counts as
"this tree has the defect"; every other exception means that the probe itself could not run,
so a renamed module or a missing package can never be mistaken for evidence.
"""

from __future__ import annotations

__all__ = ["Defect", "expect"]


class Defect(Exception):  # noqa: N818 - it names what was found, not a mistake of the probe
    """The code under test does not do what the probe expects of healthy code."""


def expect(condition: object, message: str) -> None:
    """Raise `Defect` with *message* unless *condition* is true."""
    if not condition:
        raise Defect(message)
