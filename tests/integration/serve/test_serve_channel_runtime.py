"""A wheel of a channel, served outside of a checkout: with its runtime, and a companion of the channel."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import companion_kit
import pytest
import wheelkit
from channel_kit import ChannelWorld, now

from sparkwright.base.errors import ConfigError, DigestError, MissingEvidenceError, TamperedError
from sparkwright.cli.main import main
from sparkwright.companion.wheel import write_companion
from sparkwright.engine.environment import Environment, OfferedWheel, Sources, plan_environment
from sparkwright.engine.flashinfer import CUBIN
from sparkwright.publish.evidence import ChannelPolicy, gather, require_evidence
from sparkwright.publish.reader import open_channel
from sparkwright.recipes.recipe import Recipe
from sparkwright.store.paths import Store

MACHINE = companion_kit.TARGET.machine
STRICT = ChannelPolicy(
    requires=("audit", "proofs", "rehearsal", "verify"), expires_days=30, capability="12.1"
)


def small_vllm(folder: Path) -> Path:
    tag = f"py3-none-manylinux_2_28_{MACHINE}"
    return wheelkit.plain_wheel(folder, "vllm", "0.33.0+spark.1", "flashinfer-python==1.2.3", tag=tag)


@dataclass
class Offered:
    """A channel with one wheel, its runtime and a companion."""

    world: ChannelWorld
    store: Store
    wheel: Path
    companion: Path
    patch: pytest.MonkeyPatch

    def runtime(self, recipe: str = "any", capability: str = "12.1", *, locked: bool = True) -> Environment:
        """What is served with far from any checkout."""
        place = str(self.world.published / "channels/nightly")
        offer = open_channel(self.store, place, MACHINE, "", trust=self.world.reader)
        self.patch.setattr("sparkwright.engine.environment.card_capability", lambda: capability)
        self.patch.setenv("PATH", str(self.world.folder))
        return plan_environment(
            OfferedWheel(offer.wheel, offer),
            Recipe(format=1, name=recipe, title="R", model="m"),
            Sources(self.store),
            locked=locked,
        )


@pytest.fixture
def offered(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Offered:
    world = ChannelWorld(tmp_path / "channel")
    wheel = world.audited(small_vllm(world.dist))
    world.promote_file(wheel, requires=f"flashinfer-python==1.2.3 --hash=sha256:{'0' * 64}\n")
    module = companion_kit.module(store, companion_kit.library(tmp_path, "sampling"))
    companion = world.audited(write_companion(store, companion_kit.content([module]), world.dist).path)
    candidate = gather(companion, "nightly", STRICT, world.dist / "evidence", tmp_path)
    assert [one.kind for one in candidate.evidence] == ["audit"], "no model and no carry is of it"
    world.publisher().promote("nightly", candidate, STRICT, now())
    world.pin()
    world.verify()
    return Offered(world, store, wheel, companion, monkeypatch)


def test_runtime_and_companion_come_from_the_channel(offered: Offered) -> None:
    found = offered.runtime()
    assert f"--hash=sha256:{wheelkit.sha256(offered.wheel)}" in found.requirements.text
    assert "flashinfer-python==1.2.3 --hash" in found.requirements.text
    assert f"--hash=sha256:{wheelkit.sha256(offered.companion)}" in found.requirements.text
    assert found.missing == ()
    assert found.variables == {}, "the companion does not know the recipe, so perhaps not all that it needs"


def test_a_companion_says_itself_what_it_is_enough_for(offered: Offered) -> None:
    assert offered.runtime("*").variables == {CUBIN: "1"}
    lacking = offered.runtime("experts")
    assert (lacking.missing, "flashinfer-jit-cache" in lacking.requirements.text) == (("moe",), True)
    assert lacking.variables == {}, "FlashInfer would be chosen for experts, and could not compile"
    other = offered.runtime(capability="9.0")
    assert (other.missing, "flashinfer-jit-cache" in other.requirements.text) == (
        ("the recipe's kernels",),
        False,
    )
    assert "flashinfer-jit-cache" not in offered.runtime(capability="").requirements.text


def test_a_changed_companion_or_runtime_is_refused(offered: Offered) -> None:
    (runtime,) = offered.world.published.rglob("*.requirements.txt")
    data = runtime.read_bytes()
    runtime.unlink()
    with pytest.raises(TamperedError, match="the runtime of"):
        offered.runtime()
    runtime.write_bytes(data)
    (copy,) = offered.world.published.rglob(offered.companion.name)
    copy.chmod(0o644)
    copy.write_bytes(copy.read_bytes() + b"0")
    with pytest.raises(DigestError):
        offered.runtime()


def test_without_a_runtime_it_is_served_unlocked_alone(offered: Offered, tmp_path: Path) -> None:
    bare = replace(offered, world=ChannelWorld(tmp_path / "bare"))
    bare.world.promote_file(_copied(offered, bare.world))
    bare.world.pin()
    with pytest.raises(ConfigError, match="has no locked runtime"):
        bare.runtime()
    assert bare.runtime(locked=False).requirements.text == ""


def _copied(offered: Offered, world: ChannelWorld) -> Path:
    world.dist.mkdir(parents=True)
    wheel = world.dist / offered.wheel.name
    wheel.write_bytes(offered.wheel.read_bytes())
    return world.audited(wheel)


def test_a_companion_without_an_audit_is_not_promoted(offered: Offered, tmp_path: Path) -> None:
    with pytest.raises(MissingEvidenceError) as caught:
        require_evidence(
            offered.companion, wheelkit.sha256(offered.companion), "stable", STRICT, tmp_path / "none"
        )
    assert "sparkwright audit" in caught.value.next_step


def test_the_command_needs_no_checkout(
    offered: Offered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SPARKWRIGHT_HOME", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "mine.toml"
    recipe.write_text('format = 1\nname = "mine"\ntitle = "Mine"\nmodel = "org/model"\n')
    words = [
        "serve",
        str(recipe),
        "--channel",
        str(offered.world.published / "channels/nightly"),
        "--dry-run",
    ]
    assert main([*words, "--json"]) == 21, "no root is pinned"
    assert main(["channel", "key", "pin", words[3], "--digest", offered.world.digest()]) == 0
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["wheel"] == offered.wheel.name
    assert str(tmp_path / "store" / "environments") in plan["command"]
    (runtime,) = offered.world.published.rglob("*.requirements.txt")
    runtime.chmod(0o644)
    runtime.write_bytes(runtime.read_bytes().replace(b"1.2.3", b"1.2.4"))
    assert main(words) == 0, "what was signed is in the store"
    monkeypatch.setenv("SPARKWRIGHT_HOME", str(tmp_path / "another"))
    assert main(words) == 21
