"""Evaluation by another program: its command, its files, and the verdicts on its scores."""

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkwright.base.errors import ConfigError, ServerError
from sparkwright.engine.findings import Verdict
from sparkwright.verify.evaluation import EvalRequest, TaskScore, evaluate, evaluation_run, read_scores

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


def test_scores_are_read_question_by_question(tmp_path: Path) -> None:
    group, found = read_scores(written(tmp_path, [1.0, 0.0, 1.0, 1.0]))
    assert (found.name, found.value, found.binary) == ("sums exact_match (number)", 0.75, True)
    assert found.by_question == {"0 0": 1.0, "1 1": 0.0, "2 2": 1.0, "3 3": 1.0}
    assert str(found) == "0.750 of 4 questions"
    assert (group.name, group.by_question, str(group)) == ("arithmetic exact_match", {}, "0.750")


def test_results_that_are_missing_or_damaged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no results"):
        read_scores(tmp_path)
    (tmp_path / "results_1.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_scores(tmp_path)


def test_scores_without_anything_to_compare_with_pass_as_evaluated_alone() -> None:
    (alone,) = evaluation_run(REQUEST, [score([1, 0] * 20)]).findings
    (nothing,) = evaluation_run(REQUEST, []).findings
    assert (alone.verdict, nothing.verdict) == (Verdict.PASS, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("lost", "won", "verdict"),
    [(0, 0, Verdict.PASS), (6, 5, Verdict.PASS), (12, 1, Verdict.FAIL), (1, 12, Verdict.PASS)],
)
def test_more_lost_than_won_questions_fail(lost: int, won: int, verdict: Verdict) -> None:
    before = score([1.0] * 30 + [0.0] * 30)
    after = score([0.0] * lost + [1.0] * (30 - lost) + [1.0] * won + [0.0] * (30 - won))
    assert verdicts([after], [before]) == [verdict]


def test_few_or_other_questions_decide_nothing() -> None:
    few = score([1.0] * 10)
    assert verdicts([few], [few]) == [Verdict.INCONCLUSIVE]
    other = score([1.0] * 30, by_question={f"{number} y": 1.0 for number in range(30)})
    assert verdicts([score([1.0] * 30)], [other]) == [Verdict.NOT_APPLICABLE]
    assert verdicts([few], [score([1.0], task="others")]) == [Verdict.NOT_APPLICABLE]


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
