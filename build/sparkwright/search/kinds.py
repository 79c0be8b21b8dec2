"""From the words of ``--judge`` to a judge."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from sparkwright.base.errors import ConfigError
from sparkwright.engine.verifier import Verifier
from sparkwright.search.candidates import Realiser
from sparkwright.search.command import Command, CommandJudge, CommandSampler, JudgeOptions
from sparkwright.search.figures import parse_figure
from sparkwright.search.judges import CheckJudge, MergeJudge, ProbeJudge
from sparkwright.search.metric import MetricJudge, Sampler
from sparkwright.search.model import CandidateJudge

KINDS = (
    "probe FILE, merge [CARRY …], verify CHECK, metric NAME --worse-by SHARE [-- COMMAND …], run COMMAND …"
)

_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")


def make_judge(text: str, realiser: Realiser, options: JudgeOptions | None = None) -> CandidateJudge:
    """Return the judge that *text* names, such as ``probe carries/uma-clamp/probe.py``; see `KINDS`.

    Raises:
        ConfigError: it names none.
    """
    chosen = options or JudgeOptions()
    try:
        kind, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise _no_judge(text, str(error)) from error
    _require_place(text, kind, words, chosen)
    if kind == "probe" and len(words) == 1:
        file = Path(words[0]).absolute()
        if not file.is_file():
            raise _no_judge(text, f"there is no file {words[0]}")
        judge = ProbeJudge(realiser, file, text, chosen.stop, chosen.machines)
        if judge.spec.needs:
            raise _no_judge(text, f"the probe needs {', '.join(judge.spec.needs)}, not only the merged tree")
        return judge
    if kind == "merge":
        return MergeJudge(realiser, tuple(words), text)
    if kind == "verify" and len(words) == 1:
        return _verify(text, words[0], realiser, chosen)
    if kind == "run" and words:
        return CommandJudge(Command(tuple(words), realiser, chosen), text)
    if kind == "metric" and words:
        return _metric(text, words, realiser, chosen)
    raise _no_judge(text, "it is none of the kinds of judge, or lacks its argument")


def _require_place(text: str, kind: str, words: Sequence[str], options: JudgeOptions) -> None:
    """Refuse a judge that a recipe says nothing to, or that the cluster of *options* cannot run."""
    if options.serving is not None:
        if kind not in {"verify", "metric"} or "--" in words:
            raise _no_judge(text, "a recipe is for 'verify CHECK' and 'metric NAME --worse-by SHARE' only")
    elif options.machines is not None and not (kind in {"probe", "run", "verify"} or "--" in words):
        raise _no_judge(text, "on a cluster run probes, commands and the checks of a rehearsal only")


def _verify(text: str, check: str, realiser: Realiser, options: JudgeOptions) -> CandidateJudge:
    if options.serving is not None:
        from sparkwright.search.served import ServedJudge, require_check

        require_check(check, text, _verifier(text, options))
        return ServedJudge(realiser, options.serving, check, f"{text} {options.serving}")
    from sparkwright.rehearsal import DEFAULT

    if check not in DEFAULT:
        raise _no_judge(text, f"a rehearsal has the checks {', '.join(DEFAULT)}")
    return CheckJudge(realiser, check, text, _verifier(text, options), options.machines)


def _metric(text: str, words: Sequence[str], realiser: Realiser, options: JudgeOptions) -> CandidateJudge:
    name, *rest = words
    own, command = (rest[: rest.index("--")], rest[rest.index("--") + 1 :]) if "--" in rest else (rest, [])
    lower = "--lower-is-better" in own
    own = [word for word in own if word != "--lower-is-better"]
    share = _SHARE.fullmatch(own[1]) if len(own) == 2 and own[0] == "--worse-by" else None  # noqa: PLR2004
    if share is None or not 0 < float(share[1]) < 100:  # noqa: PLR2004 - percent
        raise _no_judge(text, "a metric takes --worse-by SHARE, such as 5%")
    sampler: Sampler
    if command:
        sampler, higher = CommandSampler(Command(tuple(command), realiser, options), name), not lower
    else:
        if lower:
            raise _no_judge(text, f"it is known of {name} which side is worse")
        sampler, higher = _measured(name, realiser, options)
    everything = frozenset(change.id for change in realiser.difference.changes)
    return MetricJudge(
        sampler,
        baseline=everything if options.inverted else frozenset(),
        worse_by=float(share[1]) / 100,
        higher_is_better=higher,
    )


def _measured(name: str, realiser: Realiser, options: JudgeOptions) -> tuple[Sampler, bool]:
    """Return the source of a figure of `verify`, and true if more of it is better."""
    from sparkwright.search.served import RehearsalSampler, ServedSampler

    figure = parse_figure(name)
    if options.serving is None:
        return RehearsalSampler(realiser, figure, _verifier(name, options)), figure.higher_is_better
    return ServedSampler(realiser, options.serving, figure), figure.higher_is_better


def _verifier(text: str, options: JudgeOptions) -> Verifier:
    if options.verifier is None:
        raise _no_judge(text, "nothing runs checks here")
    return options.verifier


def _no_judge(text: str, because: str) -> ConfigError:
    return ConfigError(f"{text!r} is no judge", because=because, next_step=f"one of: {KINDS}")
