"""The servers of a run: one at an address, which is left running, or simulated ones."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError
from sparkwright.engine.client.endpoint import Endpoint, EndpointFacts, open_session
from sparkwright.engine.metrics.scrape import fetch_snapshot
from sparkwright.engine.observations import BootFacts
from sparkwright.engine.server.bootlog import error_lines, facts_from_metrics, read_boot_log
from sparkwright.engine.server.launch import start_server
from sparkwright.engine.server.lifecycle import ServerProcess
from sparkwright.recipes.recipe import Recipe, load_recipe
from sparkwright.verify.checks.settings import arm_of
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.profiles import Profile
from sparkwright.verify.simulator.faults import parse_faults
from sparkwright.verify.simulator.machine import CARD_PAGE
from sparkwright.verify.simulator.settings import VERSION, Settings, simulator_arguments


@dataclass(frozen=True)
class StandingServer:
    """A server that was started elsewhere and is left running.

    Attributes:
        facts: from its counters, and from its log if that can be read.
        log: its log, if that can be read.
    """

    endpoint: Endpoint
    facts: BootFacts
    log: Path | None = None

    restartable = False
    pid: int | None = None
    died: int | None = None

    @property
    def mark(self) -> int:
        """Length of its log now, for `errors_since`."""
        return self.log.stat().st_size if self.log is not None and self.log.exists() else 0

    def errors_since(self, mark: int) -> tuple[str, ...]:
        """Return the error lines of its log after *mark*."""
        if self.log is None or not self.log.exists():
            return ()
        with self.log.open("rb") as stream:
            stream.seek(mark)
            return error_lines(stream.read().decode(errors="replace"))


MeasuredServer = ServerProcess | StandingServer
Arms = Mapping[str, Callable[[int], AbstractAsyncContextManager[MeasuredServer]]]
"""By arm: what returns one start of its server by the number of the start; it ends with the block.

A start raises `ServerError` where the server does not come up, or ends by itself while it is in use, and
`EndpointError` where what answers cannot be verified.
"""


@contextlib.asynccontextmanager
async def standing(
    endpoint: Endpoint, known: EndpointFacts, log: Path | None = None
) -> AsyncIterator[StandingServer]:
    """Yield the server at *endpoint*, which is left running.

    Args:
        endpoint: its address.
        known: facts from the preflight.
        log: its log, if that can be read.
    """
    read = await asyncio.to_thread(read_log, log)
    async with open_session(endpoint) as session:
        read = facts_from_metrics(await fetch_snapshot(session, endpoint), read)
    yield StandingServer(endpoint, _with_known(read, known), log)


def read_log(log: Path | None) -> BootFacts:
    """Return the facts in *log*; none without it."""
    return BootFacts() if log is None else read_boot_log(log.read_text(encoding="utf-8", errors="replace"))


def _with_known(facts: BootFacts, known: EndpointFacts) -> BootFacts:
    import msgspec

    return msgspec.structs.replace(
        facts,
        version=facts.version or known.version,
        max_model_len=facts.max_model_len if facts.max_model_len > 0 else known.max_model_len,
    )


def start_simulator(
    arguments: Iterable[str], faults: Iterable[str], folder: Path, profile: Profile, *, card: str = ""
) -> AbstractAsyncContextManager[MeasuredServer]:
    """Return one start of a simulator with *arguments* and *faults*; its files are written to *folder*."""
    argv = [sys.executable, "-m", "sparkwright.verify.simulator.main", "--host", "{host}", "--port", "{port}"]
    argv += [*arguments, "--speed", str(profile.speed)]
    for fault in faults:
        argv += ["--fault", fault]
    return start_server(
        argv,
        folder=folder,
        speed=profile.speed,
        deadlines=profile.deadlines,
        known=BootFacts(capability="12.1", total_gib=Settings.total_gib, utilization=Settings.utilization),
        card=card,
    )


def simulated(options: VerifyOptions, profile: Profile, folder: Path) -> tuple[Arms, str, dict[str, str]]:
    """Return simulated servers of both arms, their title, and their identity."""
    faults = [PlantedFault.of(text) for text in options.faults]  # an unknown one is refused before any start
    recipes = _recipes(options)

    def start(arm: str, boot: int) -> AbstractAsyncContextManager[MeasuredServer]:
        k = 0 if arm == "baseline" and not options.against else options.speculative_tokens
        recipe, seed = recipes.get(arm), options.seed + boot
        if options.vary:  # configurations do not share the luck of their starts
            seed = int(digest_of([arm, boot, options.seed])[:8], 16)
        arguments = [*(simulator_arguments(recipe) if recipe else ("--k", str(k))), "--reasoning"]
        arguments += ["--seed", str(seed)]
        planted = [one.fault for one in faults if arm != "baseline" and one.fits(recipe)]
        place = folder / "servers" / f"{arm}-{boot}"
        return start_simulator(arguments, planted, place, profile, card=CARD_PAGE)

    identity = {
        "simulator": f"{VERSION} k={options.speculative_tokens} ",
        "faults": " ".join(options.faults),
        "seed": str(options.seed),
    }
    identity |= {f"{arm} recipe": " ".join(simulator_arguments(one)) for arm, one in recipes.items()}
    broken = f" with {', '.join(options.faults)}" if options.faults else ""
    arms = {arm: partial(start, arm) for arm in recipes or ("main", "baseline")}
    of = f"configurations of {recipes['main'].title}, " if options.vary else ""
    return arms, f"{of}simulated vLLM {VERSION}{broken}", identity


def _recipes(options: VerifyOptions) -> dict[str, Recipe]:
    """Return the recipe of each arm where recipes or settings are compared; else none."""
    if options.vary:
        found = options.configurations
        return {arm_of(found, index): one.recipe for index, one in enumerate(found)}
    if not options.against_recipe:
        return {}
    named = (options.recipe, options.use), recipe_and_use(options.against_recipe)
    return {arm: load_recipe(*one) for arm, one in zip(("main", "baseline"), named, strict=True)}


@dataclass(frozen=True)
class PlantedFault:
    """A fault of simulators, of those with one setting alone if it names one."""

    fault: str
    setting: str = ""
    value: str = ""

    @classmethod
    def of(cls, text: str) -> PlantedFault:
        """Return the fault that *text* names, such as ``slow=3`` or ``slow=3@max-num-seqs=8``.

        Raises:
            ConfigError: its condition is not of the form SETTING=VALUE.
            UnknownNameError: there is no such fault.
        """
        fault, at, condition = text.partition("@")
        parse_faults([fault])
        setting, equals, value = condition.partition("=")
        if at and not (setting and equals and value):
            raise ConfigError(f"--fault {text!r} cannot be used", because="after @ it takes SETTING=VALUE")
        return cls(fault, setting, value)

    def fits(self, recipe: Recipe | None) -> bool:
        """Tell if the simulator of *recipe* has the fault."""
        if not self.setting:
            return True
        speculative = recipe.speculative if recipe else {}
        effective = {
            **(recipe.flags if recipe else {}),
            "method": speculative.get("method", "none"),
            "num-speculative-tokens": speculative.get("num_speculative_tokens", 0),
        }
        return str(effective.get(self.setting)) == self.value
