"""What a git tree can say and a wheel cannot is refused by `merge`, carry by carry."""

import os
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from kit import Scene, UpstreamRepository, make_tree, write_carry

from sparkwright.carries.model import load_carry
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry
from sparkwright.merge.report import MergeReport, Outcome, OutcomeKind
from sparkwright.pipeline.job import Job

CODE, OTHER = "vllm/cache.py", "vllm/other.py"
START = {CODE: "a = 1\n\n\nb = 2\n", OTHER: "c = 3\n", "docs/page.md": "text\n", "vllm/table.json": "{}\n"}


@dataclass
class Requests:
    scene: Scene
    upstream: UpstreamRepository
    base: str

    def outcome(self, *commands: tuple[str, ...], files: dict[str, bytes] | None = None) -> Outcome:
        """Merge a pull request of *files* and git's *commands* beside a carry that fits."""
        self.upstream.git("checkout", "--quiet", "--detach", self.base)
        for path, data in (files or {}).items():
            (self.upstream.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.upstream.folder / path).write_bytes(data)
            self.upstream.git("add", "--", path)
        for command in commands:
            self.upstream.git(*command)
        self.upstream.git("commit", "--quiet", "--allow-empty", "-m", "request")
        head = self.upstream.git("rev-parse", "HEAD")
        self.upstream.git("update-ref", "refs/pull/7/head", head)
        pull = {"repository": self.upstream.address, "number": 7, "head": head, "base": self.base}
        carry = load_carry(write_carry(self.scene.root, "asked", patches={}, kind="pull", pull=pull))
        self.scene.carries = [carry]
        self.scene.add("own", {OTHER: "c = 4\n"})
        asked, own = self.scene.merge().outcomes
        assert own.kind is OutcomeKind.APPLIED, "what is wrong with one hides no other"
        return asked

    def link(self, path: str, target: str) -> tuple[str, ...]:
        """Return git's command that puts a symbolic link into the index."""
        (self.upstream.folder / ".target").write_bytes(target.encode())
        blob = self.upstream.git("hash-object", "-w", ".target")
        return ("update-index", "--add", "--cacheinfo", f"120000,{blob},{path}")

    def submodule(self, path: str) -> tuple[str, ...]:
        return ("update-index", "--add", "--cacheinfo", f"160000,{self.base},{path}")


@pytest.fixture
def requests(scene: Scene, upstream: UpstreamRepository) -> Requests:
    base = upstream.commit("start", dict(START))
    scene.base = scene.target = {**START}
    return Requests(scene, upstream, base)


def refused(outcome: Outcome) -> str:
    assert outcome.kind is OutcomeKind.REFUSED, outcome
    return outcome.detail


EDIT = {CODE: b"a = 5\n\n\nb = 2\n"}


@pytest.mark.parametrize("path", ["vllm/new.json", CODE, "csrc/x.cu", "vllm/tests/x.py", "vllm/README.md"])
def test_a_link_that_is_added_or_made(requests: Requests, path: str) -> None:
    told = refused(requests.outcome(requests.link(path, "table.json")))
    assert f"{path} is a symbolic link" in told
    assert "The carry has to change" in told


def test_links_outside_of_what_is_shipped_and_upstreams_own_harm_nothing(requests: Requests) -> None:
    outcome = requests.outcome(requests.link("docs/link.md", "page.md"), files=EDIT)
    assert outcome.kind is OutcomeKind.APPLIED
    requests.upstream.git("checkout", "--quiet", "--detach", requests.base)
    requests.upstream.git(*requests.link("vllm/link.py", "cache.py"))
    requests.upstream.git("commit", "--quiet", "-m", "link")
    requests.base = requests.upstream.git("rev-parse", "HEAD")
    assert requests.outcome(files=EDIT).kind is OutcomeKind.APPLIED


@pytest.mark.parametrize("path", ["vllm/third_party/sub", "third_party/sub"])
def test_a_submodule_wherever_it_is(requests: Requests, path: str) -> None:
    assert f"{path} is a submodule" in refused(requests.outcome(requests.submodule(path)))


def test_a_submodule_that_conflicts(requests: Requests) -> None:
    requests.scene.target = {**START, CODE: "a = 9\n\n\nb = 2\n"}
    assert requests.outcome(requests.submodule(CODE)).kind is OutcomeKind.CONFLICT


@pytest.mark.parametrize(
    ("path", "files", "named"),
    [
        (CODE, EDIT, [("mode", CODE, "executable")]),
        ("vllm/new.py", {"vllm/new.py": b"a = 5\n"}, [("mode", "vllm/new.py", "executable")]),
        ("tools/run.sh", {**EDIT, "tools/run.sh": b"true\n"}, []),  # which is not shipped
    ],
)
def test_a_mode_beside_an_edit_is_named_where_it_is_shipped(requests, path, files, named):
    outcome = requests.outcome(("update-index", "--chmod=+x", path), files=files)
    assert outcome.kind is OutcomeKind.APPLIED
    assert [(one.kind, one.path, one.name) for one in outcome.hazards] == named


@pytest.mark.parametrize(
    ("commands", "files", "because"),
    [
        ([("update-index", "--chmod=+x", CODE)], {}, f"nothing but the modes of {CODE}"),
        ([], {}, "changes nothing"),
        ([], {CODE: b"a = 1\n# caf\xe9\n"}, f"{CODE} is not UTF-8: line 2 has the byte 0xe9"),
        ([], {b"vllm/caf\xe9.py": b"x = 1\n"}, "is not UTF-8"),
        ([], {b"vllm/a\nb.py": b"x = 1\n"}, "holds control characters"),
        ([], {"vllm/a\u200bb.py".encode(): b"x = 1\n"}, "U+200B"),
        ([], {b"vllm/a\\b.py": b"x = 1\n"}, "backslash"),
        ([], {b"vllm/_C.abi3.so": b"\x7fELF"}, "vllm/_C.abi3.so is compiled"),
        ([], {b"vllm/__pycache__/a.cpython-311.pyc": b"x"}, "is compiled"),
    ],
)
def test_what_no_wheel_holds_is_refused(requests, commands, files, because):
    named = {os.fsdecode(name): data for name, data in files.items()}
    told = refused(requests.outcome(*commands, files=named))
    assert because in told
    assert ("control" in because) is ("control" in told)


def test_a_name_in_utf_8_is_a_name(requests: Requests) -> None:
    assert requests.outcome(files={"vllm/café.py": b"x = 1\n"}).kind is OutcomeKind.APPLIED


@pytest.mark.parametrize(
    ("path", "size", "limit"), [(CODE, 1 << 20, "1.0 MiB"), ("vllm/table.json", 16 << 20, "16.0 MiB")]
)
def test_a_file_that_no_audit_reads(requests: Requests, path: str, size: int, limit: str) -> None:
    told = refused(requests.outcome(files={path: b"#" * (size + 1)}))
    assert f"{path} has" in told
    assert f"reads {limit} at most" in told
    assert requests.outcome(files={path: b"#" * size}).kind is OutcomeKind.APPLIED


CRLF = (
    f"{CODE}; the line ends of {CODE} differ: the carry was written for LF, the carry has LF, it meets CRLF"
)


@pytest.mark.parametrize(
    ("theirs", "told"),
    [(START[CODE].replace("\n", "\r\n"), CRLF), (START[CODE].replace("a = 1", "a = 9"), CODE)],
)
def test_line_ends_are_told_as_the_cause_of_a_conflict_and_not_of_another(scene, theirs, told):
    scene.base, scene.target = {CODE: START[CODE]}, {CODE: theirs}
    scene.add("fix", {CODE: START[CODE].replace("a = 1", "a = 5")})
    (outcome,) = scene.merge().outcomes
    assert (outcome.kind, outcome.detail) == (OutcomeKind.CONFLICT, told)


def test_the_links_that_a_job_changes_are_told_to_the_audit(repository: Repository) -> None:
    link = FileEntry("120000", b"cache.py")
    before = make_tree(repository, {CODE: "a = 1\n", "vllm/theirs.py": link})
    after = make_tree(repository, {CODE: "a = 2\n", "vllm/theirs.py": link, "vllm/new.py": link})
    report = MergeReport(version="1", pristine=before, tree=after, commit="", outcomes=())
    job = SimpleNamespace(repository=repository, tree_of_wheel=lambda pristine: pristine)
    job._changed = partial(Job._changed, job)
    assert Job.links(cast("Job", job), report) == {"vllm/new.py"}
