"""Pull requests as carries, against a generated upstream with ``refs/pull/N/head``."""

from dataclasses import dataclass

import pytest
from kit import Recorder, Scene, UpstreamRepository, write_carry

from sparkwright.base.errors import FetchError, PatchError
from sparkwright.carries.model import load_carry
from sparkwright.git.remotes import fetch
from sparkwright.merge.absorb import History
from sparkwright.merge.prepare import refuse_moved_head
from sparkwright.merge.report import Outcome, OutcomeKind

CODE = "vllm/cache.py"
OLD = "def first():\n    return 1\n\n\ndef middle():\n    return 2\n\n\ndef last():\n    return 3\n"
NEW = OLD.replace("return 1", "return 10")
BOTH = NEW.replace("return 3", "return 30")


@dataclass
class Pulled:
    scene: Scene
    upstream: UpstreamRepository
    base: str
    head: str

    def outcome(self) -> Outcome:
        return self.scene.merge().outcomes[0]


@pytest.fixture
def pulled(scene: Scene, upstream: UpstreamRepository) -> Pulled:
    """Pull request 7, of two commits; upstream's main went on elsewhere in the file."""
    base = upstream.commit("start", {CODE: OLD})
    head = upstream.pull(7, base, [{CODE: NEW}, {CODE: BOTH}])
    scene.base = scene.target = {CODE: OLD.replace("return 2", "return 20")}
    pull = {"repository": upstream.address, "number": 7, "head": head, "base": base}
    scene.carries.append(load_carry(write_carry(scene.root, "pull-7", patches={}, kind="pull", pull=pull)))
    return Pulled(scene, upstream, base, head)


def test_a_moved_head_is_refused_and_hides_nothing(pulled: Pulled) -> None:
    moved = pulled.upstream.pull(7, pulled.base, [{CODE: BOTH}])
    pulled.scene.add("own", {"vllm/b.py": "b = 1\n"})
    pull, own = pulled.scene.merge().outcomes
    assert pull.kind is OutcomeKind.REFUSED
    assert pulled.head[:12] in pull.detail
    assert moved[:12] in pull.detail
    assert own.kind is OutcomeKind.APPLIED


def test_a_moved_head_is_refused_though_its_objects_are_here(pulled: Pulled) -> None:
    assert pulled.outcome().kind is OutcomeKind.APPLIED
    pulled.upstream.pull(7, pulled.base, [{CODE: NEW}])
    assert pulled.outcome().kind is OutcomeKind.REFUSED


def test_the_check_itself_tells_moved_from_gone(pulled: Pulled) -> None:
    pull = pulled.scene.carries[0].spec.pull
    assert pull is not None
    refuse_moved_head(pulled.scene.repository, pull)
    pulled.upstream.pull(7, pulled.base, [{CODE: NEW}])
    with pytest.raises(PatchError):
        refuse_moved_head(pulled.scene.repository, pull)
    pulled.upstream.git("update-ref", "-d", "refs/pull/7/head")
    with pytest.raises(FetchError, match="no pull request 7"):
        refuse_moved_head(pulled.scene.repository, pull)


def test_offline_without_the_objects_is_refused(pulled: Pulled) -> None:
    pulled.scene.offline = True
    outcome = pulled.outcome()
    assert outcome.kind is OutcomeKind.REFUSED
    assert "the network is off" in outcome.detail
    assert "without --offline" in outcome.detail


def test_offline_with_the_objects_merges_and_asks_nobody(pulled: Pulled, heard: Recorder) -> None:
    pulled.outcome()
    pulled.upstream.folder.rename(pulled.upstream.folder.with_name("away"))
    pulled.scene.offline = True
    assert pulled.outcome().kind is OutcomeKind.APPLIED
    assert heard.warnings == []


def test_an_unreachable_remote_is_a_warning_when_the_objects_are_here(pulled, heard):
    pulled.outcome()
    assert heard.warnings == []
    pulled.upstream.folder.rename(pulled.upstream.folder.with_name("away"))
    assert pulled.outcome().kind is OutcomeKind.APPLIED
    (warning,) = heard.warnings
    assert "pull request 7 was not checked" in warning


def test_an_unreachable_remote_is_a_refusal_when_they_are_not(pulled: Pulled) -> None:
    pulled.upstream.folder.rename(pulled.upstream.folder.with_name("away"))
    assert pulled.outcome().kind is OutcomeKind.REFUSED


def test_an_address_that_names_a_program_is_refused_and_hides_nothing(pulled: Pulled) -> None:
    pull = {"repository": "ext::sh -c true", "number": 7, "head": pulled.head, "base": pulled.base}
    evil = load_carry(write_carry(pulled.scene.root, "evil", patches={}, kind="pull", pull=pull))
    pulled.scene.carries.insert(0, evil)
    first, second = pulled.scene.merge().outcomes
    assert first.kind is OutcomeKind.REFUSED
    assert second.kind is OutcomeKind.APPLIED


def test_a_head_that_moves_between_the_check_and_the_fetch_is_refused(pulled, monkeypatch):
    from sparkwright.merge import prepare as module

    def check_then_move(*arguments: object) -> None:
        refuse_moved_head(*arguments)  # type: ignore[arg-type]
        pulled.upstream.pull(7, pulled.base, [{CODE: NEW}])

    monkeypatch.setattr(module, "refuse_moved_head", check_then_move)
    assert pulled.outcome().kind is OutcomeKind.REFUSED


def test_a_squashed_pull_is_absorbed_by_its_number_and_its_combined_patch_id(pulled: Pulled) -> None:
    pulled.upstream.commit("[Core] Fix both (#7)", {CODE: BOTH})
    target = pulled.upstream.commit("Edit again", {CODE: BOTH.replace("return 10", "return 11")})
    fetch(pulled.scene.repository, pulled.upstream.address, ["refs/heads/main"], depth=None)
    pulled.scene.target = {CODE: BOTH.replace("return 10", "return 11")}
    pulled.scene.history = History(target, pulled.base)
    outcome = pulled.outcome()
    assert outcome.kind is OutcomeKind.ABSORBED
    assert [signal.split()[0] for signal in outcome.signals] == ["subject", "patch-id"]


def test_only_the_pull_and_its_base_are_fetched(pulled: Pulled) -> None:
    later = pulled.upstream.commit("later", {CODE: OLD + "# later\n"})
    pulled.outcome()
    assert pulled.scene.repository.has(pulled.head)
    assert not pulled.scene.repository.has(later)
