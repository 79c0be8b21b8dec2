"""From a wish to a run: which servers, which checks, which sizes, and what decides the answers."""

from __future__ import annotations

import math
import os
import platform
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.verify.checks import ALL
from sparkwright.verify.client import Endpoint, check_address, check_endpoint, open_session
from sparkwright.verify.corpus import CATEGORIES, load_corpus
from sparkwright.verify.fleet import Starters, standing
from sparkwright.verify.journal import Manifest
from sparkwright.verify.model import BootFacts
from sparkwright.verify.options import profile_of
from sparkwright.verify.server import (
    find_installed,
    load_recipe,
    prepare_wheel,
    start_server,
    variant,
)
from sparkwright.verify.simulator.faults import parse_faults
from sparkwright.verify.simulator.settings import Settings
from sparkwright.verify.suite import Suite

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from sparkwright.verify.client import EndpointFacts
    from sparkwright.verify.measure import MeasuredServer
    from sparkwright.verify.options import VerifyOptions
    from sparkwright.verify.profile import Profile
    from sparkwright.verify.server import Recipe

    Start = Callable[[int], AbstractAsyncContextManager[MeasuredServer]]

# Of huggingface_hub, by which vLLM fetches models: use what is cached, and fail where it is not.
_OFFLINE = {"HF_HUB_OFFLINE": "1"}


def require_possible(wish: VerifyOptions, sizes: Profile | None = None) -> None:
    """Do nothing if nothing speaks against *wish* that can be told without asking or starting anything.

    Raises:
        ConfigError: options contradict each other, or name files that are not there.
        UnknownNameError: there is no such profile, check or category.
        EndpointError: an address is none.
    """
    profile = profile_of(wish, sizes)
    _require_known(profile)
    for url in filter(None, (wish.url, wish.baseline_url)):
        check_address(url)
    for option, value in (("--soak-seconds", wish.soak_s), ("--speed", wish.speed)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{option} takes a positive number", because=f"{value:g} is none")
    if wish.url and (wish.against or "compare" in profile.checks):
        raise ConfigError(
            "servers at addresses are not compared in speed",
            because="each start of a server is faster or slower than the next, and these stay as they are:"
            " however often one is measured, it is one start",
            next_step="give both wheels, the second one by --against",
        )
    if wish.baseline_url and not wish.url:
        raise ConfigError("--baseline-url goes with --url", because="there is no server to hold against it")
    if wish.simulator and wish.against not in {"", "simulator"}:
        raise ConfigError(
            f"a simulator is not compared with {wish.against}", next_step="give --against simulator"
        )
    files = [wish.python, *([] if wish.simulator else [wish.against]), wish.wheel, wish.log]
    if missing := [path for path in filter(None, files) if not Path(path).is_file()]:
        raise ConfigError(
            f"{missing[0]} cannot be used",
            because="there is no such file",
            next_step="name one that is there",
        )


async def prepare(
    wish: VerifyOptions,
    folder: Path,
    api_key: str = "",
    baseline_key: str = "",
    *,
    offline: bool = False,
    sizes: Profile | None = None,
) -> tuple[Suite, Manifest]:
    """The run that *wish* comes to; servers' files go below *folder*.

    Args:
        wish: what is asked for.
        folder: of the run.
        api_key: of the server at `VerifyOptions.url`; it goes nowhere else.
        baseline_key: of the one at `VerifyOptions.baseline_url`.
        offline: fetch nothing: neither what a wheel requires nor, when vLLM starts, models.
        sizes: what to start from instead of the profile that *wish* names.

    Raises:
        ConfigError: options contradict each other.
        UnknownNameError: there is no such recipe, profile, check, category or fault.
        EndpointError: what answers at the address cannot be verified.
        IncompatibleOptionsError: the recipe's options are known not to work together.
        ServerError: the wheel could not be installed.
        NotInStoreError: the wheel requires something that must be fetched, and the network is off.
    """
    require_possible(wish, sizes)
    profile = profile_of(wish, sizes)
    if wish.url:
        fleet, server, identity = await _at_address(wish, profile, (api_key, baseline_key))
    elif wish.simulator:
        fleet, server, identity = _simulated(wish, profile, folder)
    else:
        fleet, server, identity, profile = _by_recipe(wish, profile, folder, offline=offline)
    suite = Suite([ALL[name] for name in profile.checks], profile, load_corpus(), fleet, band=_band(wish))
    return suite, _manifest(wish, folder, server, {**identity, "profile": _digest(profile)})


def _require_known(profile: Profile) -> None:
    """Do nothing if every name in *profile* means something.

    Raises:
        UnknownNameError: one does not.
    """
    for what, names, known in (
        ("check", profile.checks, tuple(ALL)),
        ("category", profile.categories, CATEGORIES),
    ):
        if unknown := [name for name in names if name not in known]:
            raise UnknownNameError(
                f"there is no {what} {unknown[0]!r}", next_step=f"take some of {', '.join(known)}"
            )


# By address ---------------------------------------------------------------------------------------------


async def _at_address(
    wish: VerifyOptions, profile: Profile, keys: tuple[str, str]
) -> tuple[Starters, str, dict[str, str]]:
    log = Path(wish.log) if wish.log else None
    starters: dict[str, Start] = {}
    identity: dict[str, str] = {}
    for arm, url, key in zip(("main", "baseline"), (wish.url, wish.baseline_url), keys, strict=True):
        if not url:
            continue
        endpoint = Endpoint(url, wish.model, key)
        async with open_session(endpoint) as session:
            known = await check_endpoint(session, endpoint, profile.deadlines)
        endpoint = replace(endpoint, model=known.model)
        own_log = log if arm == "main" else None
        starters[arm] = partial(_stand, endpoint, known, own_log)
        identity |= {f"{arm}-vllm": known.version, f"{arm}-model": known.model}
    return Starters(starters), f"vLLM {identity['main-vllm']} at {wish.url}", identity


def _stand(
    endpoint: Endpoint, known: EndpointFacts, log: Path | None, boot: int
) -> AbstractAsyncContextManager[MeasuredServer]:
    del boot  # whoever started it, it was not us
    return standing(endpoint, known, log)


# The simulator ------------------------------------------------------------------------------------------


def _simulated(wish: VerifyOptions, profile: Profile, folder: Path) -> tuple[Starters, str, dict[str, str]]:
    _ = parse_faults(wish.faults)  # an unknown one is said before anything starts

    def start(arm: str, boot: int) -> AbstractAsyncContextManager[MeasuredServer]:
        k = 0 if arm == "baseline" and not wish.against else wish.speculative_tokens
        argv: list[str | Path] = [
            sys.executable, "-m", "sparkwright.verify.simulator.main",
            "--host", "{host}", "--port", "{port}", "--dialect", wish.dialect, "--k", str(k),
            "--speed", str(profile.speed), "--seed", str(wish.seed + boot),
        ]  # fmt: skip
        if wish.runner:
            argv += ["--runner", wish.runner]
        for fault in wish.faults if arm == "main" else ():
            argv += ["--fault", fault]
        place = folder / "servers" / f"{arm}-{boot}"
        return start_server(
            argv,
            folder=place,
            speed=profile.speed,
            deadlines=profile.deadlines,
            known=BootFacts(total_gib=Settings.total_gib, utilization=Settings.utilization),
        )

    identity = {
        "simulator": f"{wish.dialect} k={wish.speculative_tokens} {wish.runner}",
        "faults": " ".join(wish.faults),
        "seed": str(wish.seed),
    }
    broken = f" with {', '.join(wish.faults)}" if wish.faults else ""
    arms = {arm: partial(start, arm) for arm in ("main", "baseline")}
    return Starters(arms), f"simulated vLLM {wish.dialect}{broken}", identity


# A recipe -----------------------------------------------------------------------------------------------


def _by_recipe(
    wish: VerifyOptions, profile: Profile, folder: Path, *, offline: bool
) -> tuple[Starters, str, dict[str, str], Profile]:
    recipe = variant(load_recipe(wish.recipe), runner=wish.runner, eager=True if wish.eager else None)
    profile = _with_hints(profile, recipe, wish)
    main, identity = _environment(wish.wheel or wish.python, folder, "wheel", offline=offline)
    baseline, baseline_recipe = main, variant(recipe, speculation=False)
    if wish.against:
        baseline, other = _environment(wish.against, folder, "against", offline=offline)
        baseline_recipe, identity = recipe, {**identity, **other}

    def start(arm: str, boot: int) -> AbstractAsyncContextManager[MeasuredServer]:
        return start_server(
            recipe if arm == "main" else baseline_recipe,
            folder=folder / "servers" / f"{arm}-{boot}",
            python=main if arm == "main" else baseline,
            environment=_OFFLINE if offline else None,
            deadlines=profile.deadlines,
        )

    arms = {arm: partial(start, arm) for arm in ("main", "baseline")}
    return Starters(arms), recipe.title, {**identity, "recipe": _digest(recipe)}, profile


def _environment(place: str, folder: Path, name: str, *, offline: bool) -> tuple[Path, dict[str, str]]:
    """The interpreter that has vLLM, and what tells this vLLM from others."""
    path = Path(place)
    if path.suffix != ".whl":
        return path, {name: f"vLLM {find_installed(path).version} of an environment"}
    python = prepare_wheel(path, folder / "environments" / name, offline=offline)
    return python, {name: sha256_file(path), f"{name}-file": path.name}


def _with_hints(profile: Profile, recipe: Recipe, wish: VerifyOptions) -> Profile:
    """*profile* with what *recipe* asks for, unless the user said otherwise."""
    hints = {name: value for name, value in recipe.profile.items() if not getattr(wish, name, None)}
    return msgspec.convert({**to_builtins(profile), **hints}, type(profile)) if hints else profile


def _band(wish: VerifyOptions) -> str:
    return load_recipe(wish.recipe).band if wish.recipe else ""


# What the journal begins with ---------------------------------------------------------------------------


def _digest(model: Any) -> str:
    return digest_of(to_builtins(model))[:16]


def _manifest(wish: VerifyOptions, folder: Path, server: str, identity: dict[str, str]) -> Manifest:
    return Manifest(
        run=folder.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        server=server,
        identity=identity,
        options=wish.options,
        client={
            "sparkwright": __version__,
            "python": platform.python_version(),
            "client": f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform(terse=True)}",
        },
    )
