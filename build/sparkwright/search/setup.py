"""From the arguments of a bisection to its problem and its judge."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import BisectionError, ConfigError, NotInStoreError
from sparkwright.engine.verifier import Verifier
from sparkwright.pipeline.checkout import Checkout, open_checkout
from sparkwright.pipeline.choose import choose_arch
from sparkwright.pipeline.options import BuildOptions
from sparkwright.search.candidates import Realiser
from sparkwright.search.changes import SpecDifference, UpstreamStep, difference, weigh
from sparkwright.search.command import CommandSampler, JudgeOptions
from sparkwright.search.history import upstream_steps
from sparkwright.search.judges import AnyFailure, MergeJudge, ProbeJudge
from sparkwright.search.kinds import make_judge
from sparkwright.search.metric import MetricJudge
from sparkwright.search.model import Axis, CandidateJudge, SearchProblem
from sparkwright.search.points import ResolvedSpec, restricted
from sparkwright.search.remote import Machines
from sparkwright.search.served import Serving
from sparkwright.search.specs import Resolver
from sparkwright.upstream import Access, open_source


@dataclass(frozen=True)
class SearchOptions:
    """The arguments of a bisection.

    Attributes:
        good: SPEC of the end that works.
        bad: SPEC of the end that fails.
        axes: differences to search; all by default.
        carries: names of carries that alone are taken of both ends, with what they require; all by default.
        commits: a repository whose commits are the points between two pins; releases are if it is empty.
        find_fix: the bad end is the older one.
        mend: name what would mend the bad end rather than what breaks the good one.
        any_failure: every failure counts as the one searched for; signatures are not compared.
        deterministic: the judge gives one candidate the same verdict each time.
        repeat: the most repetitions of one candidate.
        confidence: probability of the answer at which the search ends.
        timeout_s: the most seconds of one run of a command.
        build_wheel: build each candidate's wheel for a command.
        recipe: what candidates' wheels are served by; their Python is rehearsed on the CPU if it is empty.
        profile: how much is measured then.
        command: the words of the command line that repeat this search.
        cluster: address of other machines that run the steps; they run here if it is empty.
    """

    good: str
    bad: str
    judge: str
    axes: tuple[Axis, ...] = ()
    carries: tuple[str, ...] = ()
    commits: str = ""
    find_fix: bool = False
    mend: bool = False
    any_failure: bool = False
    deterministic: bool = False
    repeat: int = 64
    confidence: float = 0.95
    timeout_s: float = 3600.0
    build_wheel: bool = False
    recipe: str = ""
    profile: str = ""
    command: tuple[str, ...] = ()
    cluster: str = ""


@dataclass(frozen=True)
class Search:
    """A bisection that is ready to run; see `sparkwright.search.engine.bisect`.

    Attributes:
        judge: judges candidates.
        alone: evaluations at the same time would disturb each other's servers.
        used: the machines that run the steps, where these are processes of their own.
    """

    problem: SearchProblem
    judge: CandidateJudge
    realiser: Realiser
    stop: threading.Event
    alone: bool = False
    used: Machines | None = None

    @property
    def difference(self) -> SpecDifference:
        """The difference between the ends."""
        return self.realiser.difference

    def machines(self) -> contextlib.AbstractContextManager[object]:
        """Start workers on the other machines, where there are any, for the length of the block."""
        return self.used or contextlib.nullcontext()

    def judge_in(self, folder: Path) -> CandidateJudge:
        """Return the judge of a bisection in *folder*, where a metric keeps its samples."""
        if isinstance(self.judge, MetricJudge):
            return replace(self.judge, kept=folder / "samples")
        return self.judge


@contextlib.contextmanager
def open_search(
    checkout: Checkout, access: Access, build: BuildOptions, options: SearchOptions, verifier: Verifier
) -> Iterator[Search]:
    """Resolve both ends and give the search between them; files of earlier commits last as long as the block.

    Raises:
        BisectionError: an end cannot be had, or nothing lies between them.
        ConfigError: the judge is none.
    """
    if not build.series and (series := _series_of_wheels(checkout, options)):
        checkout, build = open_checkout(checkout.root, series), replace(build, series=series)
    arch = choose_arch(checkout.lock, build.platform, kernels=build.kernels, arch=build.arch)
    history = open_source(options.commits or "git", access)
    with access.store.scratch() as scratch:
        resolver = Resolver(checkout, access, scratch, build.series, build.patchset, arch)
        good, bad = (_end(resolver, text, options) for text in (options.good, options.bad))
        start, end = (bad, good) if options.find_fix else (good, bad)
        steps: tuple[UpstreamStep, ...] = ()
        if not options.axes or "upstream" in options.axes:
            git = checkout.lock.release.git
            steps = upstream_steps(access, history, git, start, end, commits=bool(options.commits))
        found = difference(start, end, steps, axes=options.axes)
        build = replace(build, platform=_platform(start, end, build.platform))
        realiser = Realiser(found, checkout, access, build, options.commits or "git")
        judging = JudgeOptions(options.timeout_s, options.build_wheel, inverted=options.find_fix)
        used = _machines(access, options, judging.stop)
        serving = _serving(access, options, used, verifier)
        judging = replace(
            judging, serving=serving, machines=used if options.cluster else None, verifier=verifier
        )
        try:
            judge = make_judge(options.judge, realiser, judging)
            problem = _problem(found, judge, options)
            measured = isinstance(judge, MetricJudge) and not isinstance(judge.sampler, CommandSampler)
            alone = measured or serving is not None
            chosen = AnyFailure(judge) if options.any_failure else judge
            yield Search(problem, chosen, realiser, judging.stop, alone, used)
        finally:
            judging.stop.set()
            realiser.close()


def _series_of_wheels(checkout: Checkout, options: SearchOptions) -> str:
    """Return the series of the ends that are wheels here; empty if none is, or they are of different ones."""
    wheels = [Path(text) for text in (options.good, options.bad) if text.endswith(".whl")]
    found = {checkout.of_wheel(wheel).series for wheel in wheels if wheel.is_file()}
    return found.pop() if len(found) == 1 else ""


def _machines(access: Access, options: SearchOptions, stop: threading.Event) -> Machines | None:
    """Return the machines that run the steps; this one for servers by a recipe, `None` for all else here."""
    from sparkwright.distributed import parse_cluster
    from sparkwright.distributed.cluster import Cluster, ThisMachine
    from sparkwright.search.remote import Machines

    if options.cluster:
        if access.settings.offline:
            raise NotInStoreError(f"{options.cluster} cannot be reached", because="the network is off")
        return Machines(Cluster(address=parse_cluster(options.cluster), store=access.store), stop)
    return Machines(ThisMachine(store=access.store), stop) if options.recipe else None


def _serving(
    access: Access, options: SearchOptions, used: Machines | None, verifier: Verifier
) -> Serving | None:
    if not options.recipe or used is None:
        if options.profile:
            raise ConfigError(
                "a profile is for what a recipe serves",
                because="a rehearsal on a CPU has its own",
                next_step="add --recipe NAME",
            )
        return None
    from sparkwright.search.served import read_serving

    if options.judge.startswith("metric") and "," in options.cluster:
        raise ConfigError(
            "a metric is measured on one machine",
            because=f"{options.cluster} names several, and their speeds differ",
            next_step="name one of them",
        )
    return read_serving(used, options.recipe, options.profile, verifier, offline=access.settings.offline)


def _end(resolver: Resolver, text: str, options: SearchOptions) -> ResolvedSpec:
    spec = resolver.resolve(text)
    return restricted(spec, options.carries) if options.carries else spec


def _platform(start: ResolvedSpec, end: ResolvedSpec, otherwise: str) -> str:
    """Return the platform of the ends that are wheels."""
    stated = {spec.platform for spec in (start, end) if spec.platform}
    if len(stated) > 1:
        raise BisectionError(
            "the wheels are for different machines",
            because=f"{start.text} is for {start.platform} and {end.text} for {end.platform}",
            next_step="give two wheels for one machine",
        )
    return next(iter(stated), otherwise)


def _problem(found: SpecDifference, judge: CandidateJudge, options: SearchOptions) -> SearchProblem:
    everything = frozenset(change.id for change in found.changes)
    touched = {path for change in found.changes for path in change.files}
    name, suspects = judge.name, set[str]()
    if isinstance(judge, ProbeJudge):
        suspects = judge.suspects(touched)
        name = f"{name} ({sha256_file(judge.file)[:12]})"  # another text of the probe is another search
    if options.any_failure:
        name += ", any failure"
    return SearchProblem(
        start=_named(found, found.start, frozenset()),
        end=_named(found, found.end, everything),
        judge=name,
        changes=found.changes,
        direction="fixed" if options.find_fix else "broke",
        question="removes" if options.mend else "adds",
        # A metric repeats its samples itself, until it is decided.
        deterministic=options.deterministic or isinstance(judge, (MergeJudge, MetricJudge, ProbeJudge)),
        weights=weigh(found.changes, suspects),
        command=shlex.join(("sparkwright", "bisect", *options.command, "--try=")) + "{applied}",
        confidence=options.confidence,
        most_runs=options.repeat,
    )


def _named(found: SpecDifference, spec: ResolvedSpec, applied: frozenset[str]) -> str:
    """Return an end in words, with the digest of what it is made of: '.' may be another tomorrow."""
    return f"{spec.text} ({found.candidate(applied).digest[:12]})"
