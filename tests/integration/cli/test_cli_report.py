"""``sparkwright report``, from a run to the public table."""

import getpass
import io
import json
import platform
import socket
import subprocess
from pathlib import Path

import pytest
from command import call
from wheelkit import plain_wheel

from sparkwright.publish.evidence import ChannelPolicy
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import Plan
from sparkwright.verify.results import Results, load_run

ROOT = Path(__file__).parents[3]
QUICK = ("--demo", "--checks", "boot,sweep", "--categories", "code", "--levels", "1", "--speed", "600")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    call("verify", *QUICK, "--out", "run", cwd=tmp_path)
    return tmp_path / "run"


def report(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return call("report", *words, cwd=cwd, XDG_DATA_HOME=str(cwd / "data"))


def add(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return call("report", "add", "--json", *words, "--table", folder / "table", cwd=ROOT)


def test_a_run_becomes_a_report_and_a_row_once(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shown as a whole, and written if that is wanted alone.
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    shown = report("--run", run, "--out", "mine.json", cwd=tmp_path)
    assert '"sparkwright-owner-report"' in shown.stdout
    assert not (tmp_path / "mine.json").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    unanswered = report("--run", run, cwd=tmp_path)
    assert unanswered.returncode == 130
    for one in (shown.stdout, unanswered.stderr):
        assert f"sparkwright report --run {run}" in one
    done = report("--run", run, "--out", "mine.json", "--yes", cwd=tmp_path)
    text = (tmp_path / "mine.json").read_text()
    assert text in done.stdout
    assert json.loads(text)["report"]["complete"] is False, "fewer checks than its profile has"

    # Of this machine its kind alone: no name, user, address, path or release of the kernel.
    own = {
        socket.gethostname() if len(socket.gethostname()) > 3 else "",
        getpass.getuser(), str(tmp_path), str(ROOT), str(Path.home()) + "/", platform.release(),
        *(line.strip() for line in Path("/etc/machine-id").read_text().splitlines()),
        *subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split(),
    }  # fmt: skip
    assert not [word for word in own - {""} if word in text]

    first, again = (add(tmp_path / "mine.json", folder=tmp_path) for _ in range(2))
    assert [one["is"] for one in json.loads(first.stdout)["added"].values()] == ["unverified"]
    assert (first.returncode, again.returncode) == (0, 10)
    (tmp_path / "mine.json").write_text(text.replace('"complete": false', '"complete": true'))
    edited = add(tmp_path / "mine.json", folder=tmp_path)
    assert edited.returncode == 21
    assert [kind for kind, _ in json.loads(edited.stdout)["refused"].values()] == ["TamperedError"]
    (row,) = json.loads((tmp_path / "table/reports.json").read_bytes())["rows"]
    assert (row["verified"], row["reports"], row["wheel"]) == (False, 1, "")
    assert row["machine"].startswith("simulator")


def test_a_report_becomes_evidence_once_a_channel_lists_its_key(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = run / "journal.jsonl"
    head, *cells, end = map(json.loads, journal.read_text().splitlines())
    head["options"] |= {"wheel": "/home/me/vllm-0.33.0+mine-cp38-abi3-linux_aarch64.whl"}
    head["identity"] |= {"wheel": "a" * 64, "wheel-runtime": "b" * 64}
    end["findings"] = [{**one, "verdict": "pass"} for one in end["findings"]]
    journal.write_text("".join(json.dumps(line) + "\n" for line in (head, *cells, end)))
    assert report("--run", run, "--out", "mine.json", "--yes", cwd=tmp_path).returncode == 0
    told = json.loads((tmp_path / "mine.json").read_text())["report"]
    assert told["wheel"] == {"sha256": "a" * 64, "version": "0.33.0", "runtime": "b" * 64}

    monkeypatch.setenv("SPARKWRIGHT_DIST", str(tmp_path / "dist"))
    before = json.loads(add(tmp_path / "mine.json", folder=tmp_path).stdout)
    policy = ChannelPolicy(requires=("verify",), expires_days=1, report_keys=(told["key"],))
    monkeypatch.setattr("sparkwright.cli.report.load_policies", lambda _: {"stable": policy})
    after = json.loads(add(folder=tmp_path).stdout)
    assert (before["evidence"], len(after["evidence"])) == ([], 1)
    assert Path(after["evidence"][0]).parent == tmp_path / "dist/evidence" / ("a" * 64)
    (row,) = json.loads((tmp_path / "table/reports.json").read_bytes())["rows"]
    assert row["verified"]


def test_a_wheel_gets_the_usual_verification(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[VerifyOptions] = []

    def execute(plan: Plan, **_: object) -> Results:
        asked.append(plan.options)
        return Results(load_run(run), run, ())

    monkeypatch.setattr("sparkwright.cli.report.execute", execute)
    wheel = plain_wheel(tmp_path, "vllm", "0.33.0")
    words = (wheel, "--recipe", "qwen3.6-27b-dflash", "--use", "many", "--yes")
    assert "owner-report.json" in report(*words, cwd=tmp_path).stdout
    assert (run / "owner-report.json").is_file()
    recipe = {"recipe": "qwen3.6-27b-dflash", "use": "many"}
    assert asked == [VerifyOptions(profile="quick", wheel=str(wheel), **recipe)]


@pytest.mark.parametrize("words", [("--recipe", "qwen3.6-27b-dflash"), ("--use", "many"), ("mine.whl",)])
def test_what_a_finished_run_did_not_take_is_not_asked_of_it(
    tmp_path: Path, run: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "mine.whl").touch()
    refused = report("--run", run, "--yes", *words, cwd=tmp_path)
    assert (refused.returncode, sorted(run.glob("owner*"))) == (10, [])


def test_a_key_that_others_can_read_is_refused_before_the_work(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report("--run", run, "--yes", cwd=tmp_path)
    (tmp_path / "data/sparkwright/reports/key.pem").chmod(0o644)
    monkeypatch.setattr("sparkwright.cli.report.execute", lambda *_, **__: pytest.fail("it verified"))
    assert report(plain_wheel(tmp_path, "vllm", "0.33.0"), "--yes", cwd=tmp_path).returncode == 21


def test_a_run_that_did_not_end_is_not_reported(tmp_path: Path, run: Path) -> None:
    journal = run / "journal.jsonl"
    journal.write_bytes(b"\n".join(journal.read_bytes().split(b"\n")[:3]) + b"\n")
    refused = report("--run", run, "--yes", cwd=tmp_path)
    assert (refused.returncode, sorted(run.glob("owner*"))) == (10, [])
