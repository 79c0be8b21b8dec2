"""Evaluation by another program: its command, its files, and the verdicts on its scores."""

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkwright.base.errors import ConfigError, ServerError
from sparkwright.engine.findings import Verdict
from sparkwright.verify.eval_scores import TaskScore, read_scores
from sparkwright.verify.evaluation import EvalRequest, evaluate, evaluation_run
from sparkwright.verify.statistics import ratio_interval, share_interval

REQUEST = EvalRequest("http://server", "org/model", ("sums",))
STAMP = "2026-11-23T09-17-50.612183"


def written(folder: Path, right: Sequence[float], *, metric: str = "exact_match") -> Path:
    """Files as lm-eval 0.4.13 writes them, of one task with two filters and a group without questions."""
    place = folder / "org__model"
    place.mkdir(parents=True)
    value = sum(right) / len(right)
    results = {
        "sums": {
            "name": "sums", "alias": "sums", "sample_len": len(right), f"{metric},number": value,
            f"{metric}_stderr,number": 0.01,
        },
        "arithmetic": {"alias": "arithmetic", f"{metric},none": value, f"{metric}_stderr,none": "N/A"},
    }  # fmt: skip
    told = {"results": results, "higher_is_better": {"sums": {metric: True}}, "lm_eval_version": "0.4.13"}
    (place / f"results_{STAMP}.json").write_text(json.dumps(told))
    lines = [
        {
            "doc_id": number,
            "doc_hash": f"{number:x}",
            "filter": chosen,
            metric: hit if chosen == "number" else 0.0,
        }
        for number, hit in enumerate(right)
        for chosen in ("number", "strict")
    ]
    text = "\n".join(map(json.dumps, lines))
    (place / f"samples_sums_{STAMP}.jsonl").write_text(f"{text}\n")
    return folder


def score(right: Sequence[float], **changes: object) -> TaskScore:
    values = {f"{number} x": float(hit) for number, hit in enumerate(right)}
    given = {"task": "sums", "metric": "exact_match", "value": sum(right) / len(right), "by_question": values}
    return TaskScore(**{**given, **changes})  # type: ignore[arg-type]


def verdicts(scores: Sequence[TaskScore], *judged_by: object) -> list[Verdict]:
    """Return the verdicts beside the one that tasks were evaluated."""
    return [one.verdict for one in evaluation_run(REQUEST, scores, *judged_by).findings[1:]]  # type: ignore[arg-type]


# Scores ------------------------------------------------------------------------------------------------


def test_scores_are_read_question_by_question(tmp_path: Path) -> None:
    group, found = read_scores(written(tmp_path, [1.0, 0.0, 1.0, 1.0]))
    assert (found.name, found.value, found.binary) == ("sums exact_match (number)", 0.75, True)
    assert found.by_question == {"0 0": 1.0, "1 1": 0.0, "2 2": 1.0, "3 3": 1.0}
    assert found.interval == pytest.approx(share_interval(3, 4))
    assert "0.750 (0.301 to 0.954) of 4 questions" in str(found)
    assert (group.name, group.interval, str(group)) == ("arithmetic exact_match", None, "0.750")


def test_scores_between_right_and_wrong_have_an_interval_too(tmp_path: Path) -> None:
    found = read_scores(written(tmp_path, [0.2, 0.4, 0.9, 0.5], metric="f1"))[-1]
    assert not found.binary
    low, high = found.interval or (0, 0)
    assert low < 0.5 < high


def test_results_that_are_missing_or_damaged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no results"):
        read_scores(tmp_path)
    (tmp_path / "results_1.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_scores(tmp_path)


@pytest.mark.parametrize(("count", "total"), [(-1, 3), (4, 3), (0, 0)])
def test_what_is_no_share_has_no_interval(count: int, total: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        share_interval(count, total)


def test_intervals_are_those_of_the_literature() -> None:
    low, high = share_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)  # Newcombe 1998, method 3
    mean, low, high = ratio_interval([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], 0.95)
    assert mean == 2
    assert high - mean == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    wide = ratio_interval([10.0, 20.0, 30.0], [10.0, 10.0, 10.0], 0.95)
    assert wide == pytest.approx((mean, low, high))  # values of one cluster are no more than it


# Verdicts ----------------------------------------------------------------------------------------------


def test_scores_without_anything_to_compare_with_pass_as_evaluated_alone() -> None:
    (alone,) = evaluation_run(REQUEST, [score([1, 0] * 20)]).findings
    (nothing,) = evaluation_run(REQUEST, []).findings
    assert (alone.verdict, nothing.verdict) == (Verdict.PASS, Verdict.INCONCLUSIVE)


HIGH, LESS = score([1, 1, 1, 0] * 20), score([1, 0, 0, 0] * 20, higher_is_better=False)
WHOLE = score([1.0], by_question={}, value=0.5)  # of the whole set of questions alone


@pytest.mark.parametrize(
    ("found", "least", "verdict"),
    [
        (HIGH, 0.5, Verdict.PASS),
        (HIGH, 0.7, Verdict.INCONCLUSIVE),
        (HIGH, 0.8, Verdict.INCONCLUSIVE),
        (HIGH, 0.95, Verdict.FAIL),
        (LESS, 0.4, Verdict.PASS),
        (LESS, 0.3, Verdict.INCONCLUSIVE),
        (LESS, 0.05, Verdict.FAIL),
        (WHOLE, 0.3, Verdict.INCONCLUSIVE),
    ],
)
@pytest.mark.parametrize("name", ["sums", "sums exact_match"])
def test_a_score_fails_where_its_interval_is_beyond_the_limit(found, least, verdict, name):
    assert verdicts([found], {name: least}) == [verdict]


def test_a_limit_that_judges_no_score_is_undecided() -> None:
    found = evaluation_run(REQUEST, [score([1, 0] * 40)], {"sums f1": 0.1, "others": 0.2}).findings
    named = {one.name: one for one in found if one.verdict is Verdict.INCONCLUSIVE}
    assert list(named) == ["sums f1 is good enough", "others is good enough"]
    assert all("was not evaluated, or has no such metric" in one.cause for one in named.values())


@pytest.mark.parametrize(
    ("lost", "won", "verdict"),
    [(0, 0, Verdict.PASS), (6, 5, Verdict.PASS), (12, 1, Verdict.FAIL), (1, 12, Verdict.PASS)],
)
def test_more_lost_than_won_questions_fail(lost: int, won: int, verdict: Verdict) -> None:
    before = score([1.0] * 30 + [0.0] * 30)
    after = score([0.0] * lost + [1.0] * (30 - lost) + [1.0] * won + [0.0] * (30 - won))
    assert verdicts([after], {}, [before]) == [verdict]


def test_few_or_other_questions_decide_nothing() -> None:
    few = score([1.0] * 10)
    assert verdicts([few], {}, [few]) == [Verdict.INCONCLUSIVE]
    other = score([1.0] * 30, by_question={f"{number} y": 1.0 for number in range(30)})
    assert verdicts([score([1.0] * 30)], {}, [other]) == [Verdict.NOT_APPLICABLE]
    assert verdicts([few], {}, [score([1.0], task="others")]) == [Verdict.NOT_APPLICABLE]


# The process -------------------------------------------------------------------------------------------

HARNESS = """#!{python}
import json, os, shutil, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--output_path") + 1])
(out / "called.json").write_text(json.dumps([sys.argv[1:], os.environ["OPENAI_API_KEY"]]))
if "broken" in sys.argv[sys.argv.index("--tasks") + 1]:
    sys.exit("AssertionError: no tokenizer")
shutil.copytree({files!r}, out, dirs_exist_ok=True)
"""


def harness(folder: Path) -> str:
    """An interpreter that takes the harness's arguments and leaves the files that it would."""
    files = written(folder / "files", [1.0, 0.0])
    program = folder / "python"
    program.write_text(HARNESS.format(python=sys.executable, files=str(files)))
    program.chmod(0o755)
    return str(program)


def test_the_harness_gets_tasks_model_and_key_and_its_scores_come_back(tmp_path: Path) -> None:
    request = EvalRequest(
        "http://server:8000", "org/model", ("my_sums", "gsm8k"), ("--limit", "5"), chat=True,
        api_key="secret", python=harness(tmp_path),
    )  # fmt: skip
    scores = evaluate(request, tmp_path / "run", tmp_path / "cache")
    assert [one.name for one in scores] == ["arithmetic exact_match", "sums exact_match (number)"]
    argv, key = json.loads((tmp_path / "run" / "evaluation" / "called.json").read_text())
    told = dict(itertools.pairwise(argv))
    assert argv[:3] == ["-m", "lm_eval", "run"]
    assert told["--tasks"] == "my_sums,gsm8k"
    assert told["--limit"] == "5"
    assert told["--model"] == "local-chat-completions"
    assert "base_url=http://server:8000/v1/chat/completions" in told["--model_args"]
    assert "--apply_chat_template" in argv
    assert key == "secret"
    assert "secret" not in " ".join(argv)
    assert "secret" not in repr(request)


def test_a_harness_that_fails_says_why(tmp_path: Path) -> None:
    request = EvalRequest("http://server", "m", ("broken",), python=harness(tmp_path))
    with pytest.raises(ServerError, match="lm-evaluation-harness failed") as caught:
        evaluate(request, tmp_path / "run", tmp_path / "cache")
    assert "no tokenizer" in caught.value.because
    assert "no tokenizer" in (tmp_path / "run" / "evaluation" / "log").read_text()
