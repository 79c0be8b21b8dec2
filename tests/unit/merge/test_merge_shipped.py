"""What a git tree can say and a wheel cannot is refused by `merge`, carry by carry."""

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


@pytest.fixture
def requests(scene: Scene, upstream: UpstreamRepository) -> Requests:
    base = upstream.commit("start", dict(START))
    scene.base = scene.target = {**START}
    return Requests(scene, upstream, base)


def refused(outcome: Outcome) -> str:
    assert outcome.kind is OutcomeKind.REFUSED, outcome
    return outcome.detail


@pytest.mark.parametrize("path", ["vllm/new.json", CODE, "csrc/x.cu", "vllm/tests/x.py", "vllm/README.md"])
def test_a_link_that_is_added_or_made(requests: Requests, path: str) -> None:
    told = refused(requests.outcome(requests.link(path, "table.json")))
    assert f"{path} is a symbolic link" in told
    assert "The carry has to change" in told


def test_a_link_outside_of_what_is_shipped_harms_nothing(requests: Requests) -> None:
    edit = {CODE: b"a = 5\n\n\nb = 2\n"}
    outcome = requests.outcome(requests.link("docs/link.md", "page.md"), files=edit)
    assert outcome.kind is OutcomeKind.APPLIED


def test_a_link_that_upstream_has_is_not_the_carrys(requests: Requests) -> None:
    edit = {CODE: b"a = 5\n\n\nb = 2\n"}
    requests.upstream.git(*requests.link("vllm/link.py", "cache.py"))
    requests.upstream.git("commit", "--quiet", "-m", "link")
    requests.base = requests.upstream.git("rev-parse", "HEAD")
    assert requests.outcome(files=edit).kind is OutcomeKind.APPLIED


@pytest.mark.parametrize("path", ["vllm/third_party/sub", "third_party/sub"])
def test_a_submodule_wherever_it_is(requests: Requests, path: str) -> None:
    command = ("update-index", "--add", "--cacheinfo", f"160000,{requests.base},{path}")
    assert f"{path} is a submodule" in refused(requests.outcome(command))


def test_a_submodule_that_conflicts(requests: Requests) -> None:
    requests.scene.target = {**START, CODE: "a = 9\n\n\nb = 2\n"}
    outcome = requests.outcome(("update-index", "--cacheinfo", f"160000,{requests.base},{CODE}"))
    assert outcome.kind is OutcomeKind.CONFLICT


def test_a_mode_alone_changes_no_wheel(requests: Requests) -> None:
    told = refused(requests.outcome(("update-index", "--chmod=+x", CODE)))
    assert f"nothing but the modes of {CODE}" in told


@pytest.mark.parametrize("path", [CODE, "vllm/new.py"])
def test_a_mode_beside_an_edit_is_named(requests: Requests, path: str) -> None:
    outcome = requests.outcome(("update-index", "--chmod=+x", path), files={path: b"a = 5\n\n\nb = 2\n"})
    assert outcome.kind is OutcomeKind.APPLIED
    assert [(one.kind, one.path, one.name) for one in outcome.hazards] == [("mode", path, "executable")]


def test_a_mode_of_what_is_not_shipped_is_no_matter(requests: Requests) -> None:
    files = {CODE: b"a = 5\n\n\nb = 2\n", "tools/run.sh": b"true\n"}
    outcome = requests.outcome(("update-index", "--chmod=+x", "tools/run.sh"), files=files)
    assert (outcome.kind, outcome.hazards) == (OutcomeKind.APPLIED, ())


@pytest.mark.parametrize(
    ("name", "because"),
    [
        (b"vllm/caf\xe9.py", "is not UTF-8"),
        (b"vllm/a\nb.py", "holds control characters"),
        ("vllm/a\u200bb.py".encode(), "U+200B"),
        (b"vllm/a\\b.py", "backslash"),
    ],
)
def test_a_name_that_no_wheel_holds(requests: Requests, name: bytes, because: str) -> None:
    told = refused(requests.outcome(files={name.decode(errors="surrogateescape"): b"x = 1\n"}))
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


def test_python_that_is_not_utf_8(requests: Requests) -> None:
    told = refused(requests.outcome(files={CODE: b"a = 1\n# caf\xe9\n"}))
    assert f"{CODE} is not UTF-8: line 2 has the byte 0xe9" in told


def test_a_request_that_changes_nothing(requests: Requests) -> None:
    assert "changes nothing" in refused(requests.outcome())


class TestLineEnds:
    """Where upstream turned a file to CRLF, each line of it conflicts, and the reason is told."""

    def test_as_the_cause_of_a_conflict(self, scene: Scene) -> None:
        scene.base, scene.target = {CODE: START[CODE]}, {CODE: START[CODE].replace("\n", "\r\n")}
        scene.add("fix", {CODE: START[CODE].replace("a = 1", "a = 5")})
        (outcome,) = scene.merge().outcomes
        assert outcome.kind is OutcomeKind.CONFLICT
        assert f"the line ends of {CODE} differ" in outcome.detail
        assert "the carry has LF, it meets CRLF" in outcome.detail

    def test_not_of_another_conflict(self, scene: Scene) -> None:
        scene.base, scene.target = {CODE: START[CODE]}, {CODE: START[CODE].replace("a = 1", "a = 9")}
        scene.add("fix", {CODE: START[CODE].replace("a = 1", "a = 5")})
        (outcome,) = scene.merge().outcomes
        assert (outcome.kind, outcome.detail) == (OutcomeKind.CONFLICT, CODE)


def test_the_links_that_a_job_changes_are_told_to_the_audit(repository: Repository) -> None:
    link = FileEntry("120000", b"cache.py")
    before = make_tree(repository, {CODE: "a = 1\n", "vllm/theirs.py": link})
    after = make_tree(repository, {CODE: "a = 2\n", "vllm/theirs.py": link, "vllm/new.py": link})
    report = MergeReport(version="1", pristine=before, tree=after, commit="", outcomes=())
    job = SimpleNamespace(repository=repository, tree_of_wheel=lambda pristine: pristine)
    job._changed = partial(Job._changed, job)
    assert Job.links(cast("Job", job), report) == {"vllm/new.py"}
