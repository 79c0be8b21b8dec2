"""Ask a release, by its own parser, what it does not take of recipes; answers are recorded.

`ask_release` asks the merged tree, in the environment for probes, and `ask_installed` the vLLM that will
serve, in its own. A child process imports vLLM and builds its parser: six seconds with bytecode and files in
the page cache, a minute without, of which the engine's own start is then spared most. Answers depend on
nothing but the content, the environment and the child's own source, and are recorded under their digest.
`check_recipes` asks the releases that recipes are for, and the rules of `recipes`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import ToolError, unknown_name
from sparkwright.base.events import task
from sparkwright.base.process.session import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.engine.installed import EngineFacts
from sparkwright.git.repository import Repository
from sparkwright.pipeline.build import make, merge_carries, pristine_tree
from sparkwright.pipeline.checkout import Checkout, open_checkout, series_names
from sparkwright.pipeline.job import Job, make_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.pipeline.state import require
from sparkwright.probe.environment import environment_key, prepare_environment, tree_folder
from sparkwright.probe.pool import environment, interpreter
from sparkwright.recipes.recipe import Recipe, apply_use, node_arguments
from sparkwright.recipes.release_options import Problem, Question, question_of
from sparkwright.recipes.rules import incompatibilities
from sparkwright.store.paths import Store

_CHILD = Path(__file__).with_name("child") / "check_options.py"
_INSTALLED, _PACKAGE, _PROBLEMS = "installed", "vllm", "option-problems"
# A minute where nothing is in the page cache, and minutes on a machine that compiles.
_LIMITS = ProcessLimits(900.0, 6144)
_SAID = 2000
_MOST_READ = 16 << 20


class Problems(Model, frozen=True):
    """The options of one question that a release refuses."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class ReleaseAnswer:
    """The answer of the release *version*: what it does not take of each question."""

    version: str
    problems: tuple[tuple[Problem, ...], ...]


@dataclass(frozen=True)
class AskedRelease:
    """One release to ask.

    Attributes:
        identity: digests that determine its answers; empty records nothing.
        start: returns the command that starts the child without its request, from a folder for scratch files.
    """

    store: Store
    version: str
    identity: tuple[str, ...]
    start: Callable[[Path], list[str | Path]]

    def recorded(self, questions: Sequence[Question]) -> ReleaseAnswer | None:
        """Return the answer by records alone; `None` if any of it is not recorded."""
        known = [self._recorded(one) for one in questions]
        found = tuple(one.problems for one in known if one is not None)
        return ReleaseAnswer(self.version, found) if len(found) == len(known) else None

    def ask(self, questions: Sequence[Question]) -> ReleaseAnswer:
        """Return the answer; the child is started only for what is not recorded, once for all *questions*.

        Raises:
            ToolError: the release could not be asked.
        """
        known = [self._recorded(one) for one in questions]
        missing = [number for number, one in enumerate(known) if one is None]
        if missing:
            told = self._child([questions[number] for number in missing])
            for number, problems in zip(missing, told, strict=True):
                known[number] = one = Problems(problems)
                if self.identity:
                    self.store.put_record(_PROBLEMS, self._key(questions[number]), to_builtins(one))
        return ReleaseAnswer(self.version, tuple(require(one).problems for one in known))

    def _recorded(self, question: Question) -> Problems | None:
        if not self.identity:
            return None
        return self.store.find_record_as(Problems, _PROBLEMS, self._key(question))

    def _key(self, question: Question) -> str:
        first, *rest = self.identity
        # The parser reads the files that are named, such as templates; a relative name finds none there.
        named = (word for word in question.line if word.startswith("/"))
        files = {word: sha256 for word in named if (sha256 := _digest(Path(word)))}
        return digest_of([first, sha256_bytes(_CHILD.read_bytes()), *rest, to_builtins(question), files])

    def _child(self, questions: Sequence[Question]) -> tuple[tuple[Problem, ...], ...]:
        with task(f"ask vllm {self.version} for its options"), self.store.scratch() as scratch:
            request, report, log = (scratch / name for name in ("request.json", "report.json", "log"))
            request.write_text(json.dumps(to_builtins(questions)), encoding="utf-8")
            argv = [*self.start(scratch), "--request", request, "--report", report]
            # Without a network, vLLM looks for the model's files while it reads the arguments.
            variables = {
                name: value for name, value in environment(scratch).items() if name != "HF_HUB_OFFLINE"
            }
            try:
                run_limited(argv, limits=_LIMITS, cwd=scratch, env=variables, log=log)
                return decode_json(report.read_bytes(), tuple[tuple[Problem, ...], ...])
            except (LimitsExceeded, FileNotFoundError, msgspec.MsgspecError) as error:
                said = log.read_bytes()[-_SAID:].decode(errors="replace").strip() if log.exists() else ""
                raise ToolError(
                    f"vllm {self.version} could not be asked for its options",
                    because=said or str(error),
                    next_step="sparkwright store verify, then run again",
                ) from error


def _digest(path: Path) -> str:
    """Return the digest of the file at *path*; empty where there is none that a parser reads."""
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size <= _MOST_READ:
            return sha256_bytes(path.read_bytes())
    return ""


def ask_release(job: Job, questions: Sequence[Question]) -> ReleaseAnswer:
    """Return what the job's merged tree, the release with its carries, does not take of each question.

    Raises:
        CarryConflictError: the patchset does not merge.
        EnvironmentSetupError: the environment for probes could not be made.
        NotInStoreError: the tree or the environment is not in the store, and the network is off.
        ToolError: the release could not be asked.
    """
    report, store = make(merge_carries(job, make(pristine_tree(job)))), job.store

    def start(scratch: Path) -> list[str | Path]:
        python = prepare_environment(store, offline=job.options.offline)
        tree = tree_folder(store, job.repository, report.tree, under=_PACKAGE)
        places = {"--tree": tree, "--metadata": _metadata(scratch, report.version)}
        named = [word for pair in places.items() for word in pair]
        return [*interpreter(store, python), _CHILD, *named]

    asked = AskedRelease(store, report.version, (report.tree, environment_key()), start)
    return asked.ask(questions)


def _metadata(scratch: Path, version: str) -> Path:
    """Return a folder with the least that makes ``importlib.metadata`` find the package."""
    folder = scratch / "metadata"
    info = folder / f"{_PACKAGE}-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    return folder


def ask_installed(
    store: Store,
    python: Path | None,
    engine: EngineFacts,
    questions: Sequence[Question],
    *,
    identity: str = "",
) -> ReleaseAnswer | None:
    """Return what an installed vLLM does not take of each question.

    Answers are recorded under the digest of its files, which a wheel has as well before it is installed.

    Of a wheel that is not installed, whose *python* is `None`, only records answer. *identity* is the digest
    of one that has no list of its files; without either, nothing is recorded.

    Raises:
        ToolError: it could not be asked.
    """
    content = engine.files or identity
    key = (content, _INSTALLED, engine.version) if content else ()
    if python is None:
        return AskedRelease(store, engine.version, key, lambda _: []).recorded(questions)
    # Bytecode stays beside the modules, where the engine looks for it next.
    start: list[str | Path] = [python, "-I", _CHILD]
    return AskedRelease(store, engine.version, key, lambda _: start).ask(questions)


@dataclass(frozen=True)
class CheckedRecipe:
    """One recipe with one of its uses, checked by one series.

    Attributes:
        use: name of the use; empty for the recipe alone.
        problems: options that the release lacks or refuses, and those that it will lack.
        rules: rules of `sparkwright.recipes.rules` that it breaks there, each with its reason.
    """

    recipe: str
    use: str
    series: str
    version: str
    problems: tuple[Problem, ...] = ()
    rules: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return recipe, use and series."""
        return f"{self.recipe}{f' ({self.use})' if self.use else ''} on {self.series}"

    @property
    def refused(self) -> tuple[str, ...]:
        """Return every reason why it cannot be served so."""
        return (*(str(one) for one in self.problems if one.refuses), *self.rules)


def check_recipes(
    checkout: Checkout,
    store: Store,
    repository: Repository,
    recipes: Sequence[Recipe],
    series: str = "",
    *,
    offline: bool = False,
) -> tuple[CheckedRecipe, ...]:
    """Return the outcome of each of *recipes*, by each of its uses, in *series*, or in each that it is for.

    Raises:
        UnknownNameError: there is no such series.
        SparkwrightError: a release could not be asked; see `ask_release`.
    """
    known = series_names(checkout.root)
    for name in [series] if series else [one for recipe in recipes for one in recipe.series]:
        if name not in known:
            raise unknown_name("series", name, known)
    found: list[CheckedRecipe] = []
    for name in [series] if series else known:
        cases = [
            (recipe, use, apply_use(recipe, use) if use else recipe)
            for recipe in recipes
            if series or not recipe.series or name in recipe.series
            for use in ("", *recipe.uses)
        ]
        if cases:
            options = BuildOptions(series=name, offline=offline)
            job = make_job(open_checkout(checkout.root, name), store, repository, options)
            answer = ask_release(job, [question_of(served, (), _of_second(served)) for *_, served in cases])
            carries = frozenset(carry.name for carry in job.spec.carries)
            for (recipe, use, served), wrong in zip(cases, answer.problems, strict=True):
                broken = incompatibilities(served, answer.version, carries=carries)
                rules = tuple(f"{rule.name}: {rule.reason}" for rule in broken)
                found.append(CheckedRecipe(recipe.name, use, name, answer.version, wrong, rules))
    return tuple(found)


def _of_second(recipe: Recipe) -> tuple[str, ...]:
    """Return what the second of two machines is given besides: its command has more options."""
    return node_arguments(1, "localhost") if recipe.nodes > 1 else ()
