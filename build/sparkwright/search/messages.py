"""The messages between a bisection and the agent that judges its wheels on another machine.

Each is one line of JSON. A request goes one way, and with it, where it is asked for, the bytes of a wheel;
replies come back. Empty lines from the bisection say only that it still runs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparkwright.base.config import Model, json_decoder
from sparkwright.engine.findings import Finding
from sparkwright.rehearsal.model import CheckOutcome

ALIVE_S = 10.0
"""Time between two signs of life of a bisection; an agent that gets none for `SILENT_S` ends."""

SILENT_S = 90.0


class Request(Model, frozen=True, tag="request", tag_field="kind"):
    """A wheel to be judged.

    Attributes:
        wheel: its file name.
        sha256: its digest.
        size: its bytes.
        run: name of the run's folder; a request with the same one continues that run.
        who: who asks, for those who wait for the same card.
        checks: of `sparkwright verify`.
        levels: concurrencies of the sweep; the profile's by default.
        recipe: a recipe's name; of one with a text, the name of its file.
        recipe_text: the TOML text of a recipe that does not ship.
        profile: how much to measure.
        offline: install from the installer's cache alone.
        patience_s: how long to wait for another bisection to leave the card.
    """

    wheel: str
    sha256: str
    size: int
    run: str
    who: str
    checks: tuple[str, ...]
    recipe: str
    profile: str
    levels: tuple[int, ...] = ()
    recipe_text: str = ""
    offline: bool = False
    patience_s: float = 3600.0


class Sending(Model, frozen=True, tag="sending", tag_field="kind"):
    """The bytes of the wheel follow this line."""


class Hello(Model, frozen=True, tag="hello", tag_field="kind"):
    """The agent's first line: its version of this program."""

    version: str


class Wanted(Model, frozen=True, tag="wanted", tag_field="kind"):
    """The agent lacks the wheel."""


class Told(Model, frozen=True, tag="told", tag_field="kind"):
    """An event there, see `sparkwright.base.events`."""

    event: str
    data: dict[str, Any]


class Failed(Model, frozen=True, tag="failed", tag_field="kind"):
    """An error that is no verdict.

    Attributes:
        error: its class.
        what: the failure.
        because: the cause.
        next_step: the action that the user can take.
    """

    error: str
    what: str
    because: str = ""
    next_step: str = ""


class Judged(Model, frozen=True, tag="judged", tag_field="kind"):
    """The result of a request.

    Attributes:
        started: false if no server came up.
        outcomes: of each check.
        findings: all conclusions, with their figures.
        folder: of the run, on the machine that judged.
        seconds: wall-clock time there.
    """

    started: bool
    outcomes: tuple[CheckOutcome, ...]
    findings: tuple[Finding, ...] = ()
    folder: str = ""
    seconds: float = 0.0


Order = Request | Sending
Reply = Hello | Wanted | Told | Failed | Judged

read_order = json_decoder(Order).decode
read_reply = json_decoder(Reply).decode


def line_of(message: Order | Reply) -> bytes:
    """Return *message* as it is sent."""
    return msgspec.json.encode(message) + b"\n"
