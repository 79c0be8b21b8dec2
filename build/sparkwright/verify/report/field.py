"""The definition of every aggregate, and the table of a run by the protocol of another program."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sparkwright.base.text import clean
from sparkwright.verify.export.definitions import OWN
from sparkwright.verify.protocol.figures import DEFINITIONS, DEVIATIONS
from sparkwright.verify.protocol.results import protocol_tests
from sparkwright.verify.protocol.table import FORM, protocol_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkwright.verify.run import Run


class FieldSection(NamedTuple):
    """The content of the section.

    Attributes:
        own: definitions of the report's aggregates, by name.
        form: release of the program whose protocol was carried out; empty for another run.
        columns: heads of the protocol's table.
        rows: of it.
        theirs: definitions of its columns.
        deviations: differences to that program.
    """

    own: Mapping[str, str]
    form: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    theirs: Mapping[str, str] = {}
    deviations: Sequence[str] = ()


def field_section(run: Run) -> FieldSection:
    """Return the definitions, with the protocol's table where *run* carried one out."""
    tests = protocol_tests(run)
    if not tests:
        return FieldSection(OWN)
    columns, rows = protocol_rows(tests)
    shown = [[clean(cell) for cell in row] for row in rows]
    return FieldSection(OWN, f"llama-benchy {FORM}", columns, shown, DEFINITIONS, DEVIATIONS)
