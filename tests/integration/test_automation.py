"""Workflows, their scripts and the systemd units: their own checkers accept them, and find planted faults."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from kit import write_program

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
UNITS = ROOT / "ci" / "systemd"
CHECKOUT = "/var/lib/sparkwright/checkout"
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """What actionlint says of the workflows below *folder*."""
    program = Path(sys.executable).with_name("actionlint")
    return subprocess.run([program, "-no-color"], cwd=folder, check=False, capture_output=True, text=True)


def copied(folder: Path) -> Path:
    """A project of its own with our workflows and their settings."""
    shutil.copytree(ROOT / ".github", folder / ".github")
    (folder / ".git").mkdir()
    return folder / ".github"


def test_actionlint_accepts_every_workflow(tmp_path):
    copied(tmp_path)
    done = lint(tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("workflow", "right", "wrong"),
    [
        ("nightly.yml", "gb10]", "gb11]"),
        ("nightly.yml", "needs.follow.outputs.wheel", "needs.follow.outputs.weel"),
        ("tests.yml", "ubuntu-24.04-arm", "ubuntu-24.04-leg"),
        ("docs.yml", "contents: read", "contents: reed"),
        ("release.yml", "needs.build.outputs.tag", "needs.build.outputs.tagg"),
        ("release.yml", "needs: [build, attest]", "needs: [build, attests]"),
        ("release.yml", "attestations: write", "attestation: write"),
    ],
)
def test_actionlint_finds_a_planted_fault(tmp_path, workflow, right, wrong):
    path = copied(tmp_path) / "workflows" / workflow
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    done = lint(tmp_path)
    assert done.returncode == 1
    assert workflow in done.stdout


def jobs(name: str) -> dict[str, dict]:
    return yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]


def test_only_the_job_that_proposes_may_write_and_it_is_asked_for():
    whole = yaml.safe_load((WORKFLOWS / "nightly.yml").read_text())
    assert whole["permissions"] == {"contents": "read"}
    writers = {name: job for name, job in whole["jobs"].items() if "permissions" in job}
    assert list(writers) == ["propose"]
    assert "vars.SPARKWRIGHT_PROPOSE == 'true'" in writers["propose"]["if"]


def test_a_machine_of_ones_own_is_used_only_where_there_is_one():
    own = {name: job for name, job in jobs("nightly.yml").items() if "self-hosted" in job["runs-on"]}
    assert list(own) == ["verify"]
    assert "vars.SPARKWRIGHT_GB10_RUNNER == 'true'" in own["verify"]["if"]
    triggers = yaml.safe_load((WORKFLOWS / "nightly.yml").read_text())[True]  # YAML reads `on` so
    assert set(triggers) == {"schedule", "workflow_dispatch"}  # no pull request reaches that machine


def test_of_a_release_each_job_may_do_what_it_needs_and_no_more():
    whole = yaml.safe_load((WORKFLOWS / "release.yml").read_text())
    assert whole["permissions"] == {"contents": "read"}
    assert {name: job["permissions"] for name, job in whole["jobs"].items() if "permissions" in job} == {
        "attest": {"attestations": "write", "id-token": "write"},
        "candidate": {"actions": "write", "contents": "write"},
        "image": {"attestations": "write", "contents": "read", "id-token": "write", "packages": "write"},
        "stable": {"actions": "write", "contents": "write", "packages": "write"},
    }
    with_key = {name for name, job in whole["jobs"].items() if "secrets." in str(job)}
    assert with_key == {"candidate", "stable"}
    for name, job in whole["jobs"].items():
        assert (job.get("environment") == name) == (name in with_key), "a key is a secret of one environment"
        steps = [step for step in job["steps"] if "secrets." in str(step)]
        assert all(step["run"].startswith("ci/release-publish.sh ") for step in steps), "one step has it"
        assert not any("secrets." in step.get("run", "") for step in job["steps"]), "on no command line"
    own = {name for name, job in whole["jobs"].items() if "self-hosted" in job["runs-on"]}
    assert own == {"verify"}
    assert "vars.SPARKWRIGHT_GB10_RUNNER == 'true'" in whole["jobs"]["verify"]["if"]
    assert set(whole[True]) == {"push", "workflow_run"}  # no pull request reaches that machine
    assert "vars.SPARKWRIGHT_RELEASE == 'true'" in whole["jobs"]["build"]["if"]
    assert "github.ref " in whole["concurrency"]["group"], "a night that waits takes no tag's place"


def test_every_action_is_pinned_by_a_commit():
    for path in WORKFLOWS.glob("*.yml"):
        used = re.findall(r"uses: (\S+)(.*)", path.read_text())
        assert used
        for action, comment in used:
            assert re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40}", action), f"{path.name}: {action}"
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{path.name}: {action} has no version"


def test_workflows_run_scripts_that_exist():
    called = {
        step["run"].split()[0]
        for path in WORKFLOWS.glob("*.yml")
        for job in jobs(path.name).values()
        for step in job["steps"]
        if step.get("run", "").startswith("ci/")
    }
    scripts = {f"ci/{path.name}" for path in ROOT.glob("ci/*.sh")}
    assert called <= scripts
    assert scripts - called == {"ci/release-rehearsal.sh"}  # by make
    for script in scripts:
        assert os.access(ROOT / script, os.X_OK), script
        subprocess.run(["bash", "-n", ROOT / script], check=True)


MAKEFILE = """\
.venv/.ready-verify:
wheel:
	@echo $(PLATFORM) >>made; exit $(FAILS)
"""


@pytest.mark.parametrize(
    ("tag", "fails", "status", "made"), [("v0", "0", 10, ""), ("v1.2", "50", 2, "aarch64\n")]
)
def test_a_release_of_another_version_or_whose_audit_fails_ends_before_anything_is_handed_on(
    tmp_path, tag, fails, status, made
):
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    write_program(tmp_path / ".venv/bin/python", "echo 1.2")
    (tmp_path / "made").touch()
    environment = {
        **os.environ, "GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": tag, "FAILS": fails,
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip
    done = subprocess.run(
        [tmp_path / "ci/release-build.sh"], env=environment, check=False, capture_output=True
    )
    assert done.returncode == status
    assert (tmp_path / "made").read_text() == made
    assert not (tmp_path / "output").exists()


def test_the_folder_of_a_rehearsal_is_no_word_of_the_makes_that_it_starts(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    told = r'make --silent --eval "told: ; @echo $1,\$(ARGS)" told'
    write_program(tmp_path / "ci/release-rehearsal.sh", told)
    command = ["make", "--silent", "release-rehearsal", "ARGS=/srv/a"]
    assert subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout == b"/srv/a,\n"


@pytest.mark.parametrize("platform", ["manylinux_2_28", "manylinux_2_35", "manylinux_2_17_A.manylinux2014"])
def test_a_release_names_each_machines_wheel_whatever_platform_it_is_for(tmp_path, platform):
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    name = f"vllm-1.2+spark.1-cp38-abi3-{platform.replace('A', '$(PLATFORM)')}_$(PLATFORM).whl"
    (tmp_path / "Makefile").write_text(f".venv/.ready-verify:\nwheel:\n\tcp a.zip dist/{name}\n")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("vllm-1.2.dist-info/sboms/sparkwright.cdx.json", "{}")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "dist").mkdir()
    for program in ("python", "sparkwright", "uv"):
        write_program(tmp_path / ".venv/bin" / program, "echo 1.2")
    environment = {**os.environ, "GITHUB_REF_TYPE": "", "GITHUB_OUTPUT": str(tmp_path / "output")}
    subprocess.run([tmp_path / "ci/release-build.sh"], env=environment, check=True, capture_output=True)
    told = dict(line.split("=") for line in (tmp_path / "output").read_text().splitlines())
    assert {told[machine] for machine in ("aarch64", "x86_64")} == {
        path.name for path in (tmp_path / "dist").glob("*.whl")
    }


# The script of a night, with a program in place of sparkwright that ends as told ------------

PROGRAM = """\
#!/bin/sh
echo "$@" >>calls
case $1 in nightly) ;; *) exit 0 ;; esac
if [ "$WROTE" = yes ]; then
    mkdir -p .sparkwright/nightly/wheels
    echo "## A night" >.sparkwright/nightly/report.md
    touch .sparkwright/nightly/wheels/a.whl
fi
exit "$STATUS"
"""


def run_night(folder: Path, status: int, *, wrote: bool, onto: str = "") -> subprocess.CompletedProcess[str]:
    bin_ = folder / ".venv" / "bin"
    bin_.mkdir(parents=True)
    (folder / "Makefile").write_text(".venv/.ready-verify:\n\t@touch $@\n")
    (bin_ / "sparkwright").write_text(PROGRAM)
    (bin_ / "sparkwright").chmod(0o755)
    return subprocess.run(
        [ROOT / "ci" / "nightly.sh"],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "STATUS": str(status),
            "WROTE": "yes" if wrote else "no",
            "ONTO": onto,
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        },
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("status", "wrote", "verdict", "wheel"),
    [
        (0, True, "green", "true"),
        (94, False, "nothing-new", "false"),
        (95, True, "needs-person", "true"),
        (95, False, "needs-person", "false"),
    ],
)
def test_a_night_hands_on_its_verdict_and_its_report(tmp_path, status, wrote, verdict, wheel):
    done = run_night(tmp_path, status, wrote=wrote)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_text().split() == [f"verdict={verdict}", f"wheel={wheel}"]
    summary = (tmp_path / "summary").read_text()
    assert ("## A night" in summary) == wrote


def test_an_error_of_a_night_is_the_jobs_error(tmp_path):
    done = run_night(tmp_path, 20, wrote=False)
    assert done.returncode == 20
    assert not (tmp_path / "output").exists()


def test_targets_that_are_asked_for_are_words_and_nothing_else(tmp_path):
    run_night(tmp_path, 0, wrote=True, onto="0.33.0 $(touch${IFS}here);touch there")
    first = (tmp_path / "calls").read_text().splitlines()[0]
    assert first == (
        "nightly --triton --detailed-exit-code --onto 0.33.0 --onto $(touch${IFS}here);touch --onto there"
    )
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "there").exists()


# systemd --------------------------------------------------------------------------------


def verify_units(folder: Path, **replaced: str) -> subprocess.CompletedProcess[str]:
    """What systemd says of the units, on a machine that has the checkout."""
    program = folder / "checkout" / ".venv" / "bin" / "sparkwright"
    write_program(program, "")
    for unit in UNITS.iterdir():
        text = unit.read_text().replace(CHECKOUT, str(folder / "checkout"))
        for right, wrong in replaced.items():
            text = text.replace(right, wrong)
        (folder / unit.name).write_text(text)
    units = sorted(path for path in folder.glob("sparkwright-*"))
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], check=False, capture_output=True, text=True
    )


@analyze
def test_systemd_accepts_the_units(tmp_path):
    done = verify_units(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sparkwright-nightly" not in done.stderr


@analyze
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("ProtectHome=", "ProtectHouse="), ("03:17:00", "25:17:00"), ("ExecStart=/", "ExecStart=")],
)
def test_systemd_finds_a_planted_fault(tmp_path, right, wrong):
    done = verify_units(tmp_path, **{right: wrong})
    assert "sparkwright-nightly" in done.stderr


# The script that proposes, with programs in place of sparkwright and gh -----------------------

GH = """\
#!/bin/sh
printf '%s\\n' "$*" >>gh-calls
case "$2" in list) echo "$LISTED" ;; esac
"""


@pytest.mark.parametrize("known", [False, True])
def test_a_pull_request_is_opened_once_and_then_edited(tmp_path, known):
    for folder, name, text in ((".venv/bin", "sparkwright", PROGRAM), ("programs", "gh", GH)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(text)
        (tmp_path / folder / name).chmod(0o755)
    (tmp_path / "Makefile").write_text(".venv/.ready:\n\t@touch $@\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for words in (
        ["init", "--quiet"],
        ["commit", "--quiet", "--allow-empty", "-m", "Pin; $(touch evil) vLLM"],
    ):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    subprocess.run(["git", "branch", "sparkwright/1.3.0"], cwd=tmp_path, check=True)
    environment = {
        "PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}",
        "STATUS": "0",
        "WROTE": "yes",
        "LISTED": "https://forge.example/pull/5" if known else "",
    }
    subprocess.run([ROOT / "ci" / "nightly-propose.sh"], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "calls").read_text() == "nightly --propose-last --push\n"
    _, call = (tmp_path / "gh-calls").read_text().splitlines()
    given = "edit sparkwright/1.3.0" if known else "create --head sparkwright/1.3.0"
    assert call == f"pr {given} --title Pin; $(touch evil) vLLM --body-file .sparkwright/nightly/report.md"
    assert not (tmp_path / "evil").exists()
