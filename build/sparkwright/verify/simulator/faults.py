"""The faults of a simulated server: the table in ``faults.toml``, and those that are active in one server.

Other modules read a `Faults` with ``faults.value("slow", "factor")``, which is `None` while the fault is off.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sparkwright.base.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Fault:
    """One switch; see ``faults.toml``.

    Attributes:
        noticed_by: names of the checks that must not pass while it is on.
        parameters: their defaults, by name; the first is the one that ``--fault NAME=VALUE`` sets.
    """

    name: str
    does: str
    noticed_by: tuple[str, ...]
    parameters: Mapping[str, float]


def _table() -> Iterator[Fault]:
    text = Path(__file__).with_name("faults.toml").read_text(encoding="utf-8")
    for name, fault in tomllib.loads(text).items():
        yield Fault(name, fault["does"], tuple(fault["noticed-by"]), fault.get("parameters", {}))


FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({fault.name: fault for fault in _table()})


@dataclass(frozen=True)
class Faults:
    """The active faults, with their parameters."""

    active: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return FAULTS[name].name in self.active  # a misspelt name must not read as healthy

    def of(self, name: str) -> Mapping[str, float]:
        """Return the parameters of the fault *name*, which has some; none while it is off."""
        return self.active.get(FAULTS[name].name, {})  # a misspelt name must not read as healthy

    def value(self, name: str, parameter: str) -> float | None:
        """Return a parameter of the fault *name*, or `None` while it is off.

        Raises:
            KeyError: there is no such fault, or it has no such parameter.
        """
        FAULTS[name].parameters[parameter]  # a misspelt name must not read as healthy
        found = self.active.get(name)
        return None if found is None else found[parameter]

    def value_or(self, name: str, parameter: str, otherwise: float) -> float:
        """Return a parameter of the fault *name*, or *otherwise* while it is off."""
        found = self.value(name, parameter)
        return otherwise if found is None else found

    def hits(self, name: str, number: int) -> bool:
        """Tell if request *number* (from 1) is one that the fault *name* affects."""
        every = self.value(name, "every")
        return every is not None and number % int(every) == 0


def parse_faults(texts: Iterable[str]) -> Faults:
    """Read ``NAME``, ``NAME=VALUE`` and ``NAME=parameter:value,…``.

    Raises:
        UnknownNameError: there is no such fault.
        ConfigError: it has no such parameter, or that is no number.
    """
    active: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        if name not in FAULTS:
            raise unknown_name("fault", name, list(FAULTS))
        active[name] = {**FAULTS[name].parameters, **_parameters(FAULTS[name], rest)}
    return Faults(active)


def _parameters(fault: Fault, text: str) -> dict[str, float]:
    names = list(fault.parameters)
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, colon, value = part.rpartition(":")
        name = name if colon else (names[0] if names else "")
        try:
            found[name] = float(value)
        except ValueError as error:
            raise ConfigError(f"the fault {fault.name!r} takes numbers, not {value!r}") from error
        if name not in names:
            raise ConfigError(
                f"the fault {fault.name!r} has no parameter {name!r}",
                because=f"it has {', '.join(names) or 'none'}",
            )
    return found


def slow_state(faults: Faults, now: float) -> bool:
    """Tell if the card is in its slow state at the simulated time *now*."""
    return now >= faults.value_or("slow-state", "onset_s", math.inf)
