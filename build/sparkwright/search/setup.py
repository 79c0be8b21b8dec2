"""From the arguments of a bisection to its problem and its judge."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import BisectionError, ConfigError, NotInStoreError, unknown_name
from sparkwright.carries.patchset import closure
from sparkwright.engine.outcomes import Verifier
from sparkwright.pipeline.checkout import Checkout, open_checkout
from sparkwright.pipeline.options import BuildOptions, choose_arch
from sparkwright.search.candidates import Realiser
from sparkwright.search.changes import UpstreamStep, difference, upstream_steps, weigh
from sparkwright.search.judges import MergeJudge, ProbeJudge, make_judge
from sparkwright.search.metric import MetricJudge, Serving
from sparkwright.search.model import Axis, CandidateJudge, SearchProblem
from sparkwright.search.specs import ResolvedSpec, Resolver
from sparkwright.upstream.releases import Access, open_source


@dataclass(frozen=True)
class SearchOptions:
    """The arguments of a bisection.

    Attributes:
        carries: names of carries that alone are taken of both ends, with what they require; all by default.
        commits: a repository whose commits are the points between two pins; releases are if it is empty.
        recipe: what candidates' wheels are served by; their Python is rehearsed on the CPU if it is empty.
        cluster: address of other machines whose cards serve the wheels; this one's does if it is empty.
        command: the words of the command line that repeat this search.
    """

    good: str
    bad: str
    judge: str
    axes: tuple[Axis, ...]
    carries: tuple[str, ...]
    commits: str
    find_fix: bool
    any_failure: bool
    deterministic: bool
    timeout_s: float
    recipe: str
    cluster: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Search:
    """A bisection that is ready to run; see `sparkwright.search.engine.bisect`."""

    problem: SearchProblem
    judge: CandidateJudge
    realiser: Realiser

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
    commits = options.commits or "git"
    with access.store.scratch() as scratch:
        resolver = Resolver(checkout, access, scratch, build.series, build.patchset, arch)
        ends = [_end(resolver, text, options.carries) for text in (options.good, options.bad)]
        start, end = ends[::-1] if options.find_fix else ends
        steps: tuple[UpstreamStep, ...] = ()
        if not options.axes or "upstream" in options.axes:
            source, git = open_source(commits, access), checkout.lock.release.git
            steps = upstream_steps(access, source, git, start, end, commits=bool(options.commits))
        found = difference(start, end, steps, axes=options.axes)
        build = replace(build, platform=_platform(start, end, build.platform))
        realiser = Realiser(found, checkout, access, build, commits)
        serving = _serving(realiser, options, verifier)
        judge = make_judge(
            options.judge, realiser, verifier,
            timeout_s=options.timeout_s, inverted=options.find_fix, serving=serving,
        )  # fmt: skip
        yield Search(_problem(realiser, judge, options), judge, realiser)


def _series_of_wheels(checkout: Checkout, options: SearchOptions) -> str:
    """Return the series of the ends that are wheels here; empty if none is, or they are of different ones."""
    wheels = [Path(text) for text in (options.good, options.bad) if text.endswith(".whl")]
    found = {checkout.of_wheel(wheel).series for wheel in wheels if wheel.is_file()}
    return found.pop() if len(found) == 1 else ""


def _end(resolver: Resolver, text: str, names: tuple[str, ...]) -> ResolvedSpec:
    """Return an end with all of its carries, or with no others than *names* and those that they require."""
    spec = resolver.resolve(text)
    known = [carry.name for carry in spec.carries]
    for name in names:
        if name not in known:
            raise unknown_name(f"carry in {text}", name, known)
    return replace(spec, carries=closure(names, spec.carries)) if names else spec


def _serving(realiser: Realiser, options: SearchOptions, verifier: Verifier) -> Serving | None:
    """Return how a recipe serves candidates, on this machine's card or another's; `None` without a recipe."""
    if not options.recipe:
        if options.cluster:
            raise ConfigError(
                "--cluster is for what a recipe serves",
                because="everything else is judged on this machine, by code alone",
                next_step="add --recipe NAME",
            )
        return None
    from sparkwright.distributed.cluster import Cluster
    from sparkwright.distributed.tasks import parse_cluster
    from sparkwright.recipes.recipe import load_recipe

    if options.judge.startswith("metric") and "," in options.cluster:
        raise ConfigError(
            "a metric is measured on one machine",
            because=f"{options.cluster} names several, and their speeds differ",
            next_step="name one of them",
        )
    _ = load_recipe(options.recipe)  # an unknown or malformed one is refused before any work
    access = realiser.access
    if not options.cluster:
        return Serving(realiser, None, options.recipe, verifier)
    if access.settings.offline:
        raise NotInStoreError(f"{options.cluster} cannot be reached", because="the network is off")
    machines = Cluster(hosts=parse_cluster(options.cluster), store=access.store)
    return Serving(realiser, machines, options.recipe, verifier)


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


def _problem(realiser: Realiser, judge: CandidateJudge, options: SearchOptions) -> SearchProblem:
    found = realiser.difference
    everything = frozenset(change.id for change in found.changes)
    name, suspects = judge.name, set[str]()
    if isinstance(judge, ProbeJudge):
        suspects = judge.suspects({path for change in found.changes for path in change.files})
        name = f"{name} ({sha256_file(judge.file)[:12]})"  # another text of the probe is another search
    # With the digest of what an end is made of: '.' may be another tomorrow.
    start, end = (
        f"{spec.text} ({found.candidate(applied).digest[:12]})"
        for spec, applied in ((found.start, frozenset[str]()), (found.end, everything))
    )
    return SearchProblem(
        start=start,
        end=end,
        judge=name,
        changes=found.changes,
        direction="fixed" if options.find_fix else "broke",
        # A metric repeats its samples itself, until it is decided.
        deterministic=options.deterministic or isinstance(judge, (MergeJudge, MetricJudge, ProbeJudge)),
        weights=weigh(found.changes, suspects),
        any_failure=options.any_failure,
        command=shlex.join(("sparkwright", "bisect", *options.command, "--try=")) + "{applied}",
    )
