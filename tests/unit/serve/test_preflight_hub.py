"""A model that is not on this machine is read on the hub: sizes, memory, and what forbids the download."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import DENSE, MODELOPT, QWEN_27B, QWEN_27B_DFLASH, dflash_27b, nvfp4_27b, write_checkpoint
from hub_kit import HubServer, hub_server
from preflight_kit import GIB, recipe, start

from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.checkpoint import read_checkpoint
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.hub import Hub
from sparkwright.serve.preflight.machine import HostFacts
from sparkwright.serve.preflight.run import PreflightReport, inspect_start, run_preflight


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        server.models["org/m"] = write_checkpoint(tmp_path / "m", QWEN_27B, nvfp4_27b(), modelopt=MODELOPT)
        server.models["org/draft"] = write_checkpoint(
            tmp_path / "d", QWEN_27B_DFLASH, dflash_27b(), tokenizer=False
        )
        yield server


def report(server: HubServer, served: Recipe, host: HostFacts | None = None, **more: str) -> PreflightReport:
    variables = {"HOME": "/nonexistent", "HF_ENDPOINT": server.url, **more}
    return inspect_start(start(served, host, environment=variables, hub=Hub(variables)))


def said(found: PreflightReport, check: str) -> list[Finding]:
    return [one for one in found.findings if one.check == check]


SERVED: dict[str, Any] = {
    "drafter": "org/draft",
    "speculative": {"method": "dflash", "num_speculative_tokens": 12},
    "flags": {
        "kv-cache-dtype": "fp8_e4m3",
        "enable-prefix-caching": True,
        "attention-backend": "TRITON_ATTN",
    },
    "weights": "modelopt",
}


def test_memory_is_that_of_the_same_model_in_a_folder(hub: HubServer) -> None:
    there = report(hub, recipe("org/m", **SERVED))
    local = {**SERVED, "drafter": str(hub.models["org/draft"])}
    here = inspect_start(start(recipe(hub.models["org/m"], **local)))
    assert there.budget.weights == here.budget.weights > 9 * GIB
    assert there.budget.plan == here.budget.plan is not None
    assert there.budget.drafter == here.budget.drafter > 0
    assert [(row.part, row.gib) for row in there.rows] == [(row.part, row.gib) for row in here.rows]
    assert there.budget.weights_source.startswith("the hub's headers: ")
    assert here.budget.weights_source.startswith("headers: ")


def test_the_download_is_told_and_only_headers_are_read(hub: HubServer) -> None:
    first, second = said(report(hub, recipe("org/m", **SERVED)), "model-fetched")
    folder = hub.models["org/m"]
    size = sum(path.stat().st_size for path in folder.iterdir()) / GIB
    assert first.level == "note"
    assert f"{size:.1f} GiB in {len(list(folder.iterdir()))} files, as the hub lists them" in first.because
    assert second.what == "org/draft is fetched before the server starts"
    assert hub.sent < 1 << 20 < size * GIB


def test_files_that_vllm_does_not_fetch_are_not_counted(hub: HubServer) -> None:
    before = Hub({"HF_ENDPOINT": hub.url}).read("org/m").download
    folder = hub.models["org/m"]
    for name in ("original/w.safetensors", "sub/w.safetensors", "m.gguf", "README.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(bytes(1000))
    assert Hub({"HF_ENDPOINT": hub.url}).read("org/m").download == before
    (folder / "extra.json").write_text("{}")
    assert Hub({"HF_ENDPOINT": hub.url}).read("org/m").download == before + 2


def test_a_licence_that_is_not_accepted(hub: HubServer) -> None:
    hub.gated.add("org/m")
    (refused,) = said(report(hub, recipe("org/m")), "model-refused")
    assert (refused.level, refused.because) == ("refuse", "the hub answers 403 to no token")
    assert "HF_TOKEN" in refused.next_step
    (refused,) = said(report(hub, recipe("org/m"), HF_TOKEN="hf_wrong"), "model-refused")  # noqa: S106
    assert refused.because == "the hub answers 403 to a token"
    assert "hf_wrong" not in str(refused)
    assert said(report(hub, recipe("org/m"), HF_TOKEN=hub.token), "model-refused") == []


def test_the_token_of_a_login_is_used_and_not_sent_to_another_host(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{hub.token}\n")
    hub.gated.add("org/m")
    with hub_server() as other:
        other.models.update(hub.models)
        hub.elsewhere = other.url.replace("127.0.0.1", "localhost")
        found = Hub({"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}).read("org/m")
    assert found.checkpoint is not None
    assert {token for _, token in hub.asked} == {f"Bearer {hub.token}"}
    assert other.asked
    assert {token for _, token in other.asked} == {""}


def test_without_the_hub_nothing_is_known_and_nothing_refused(hub: HubServer) -> None:
    variables = {"HOME": "/nonexistent", "HF_ENDPOINT": "http://127.0.0.1:9"}
    request = start(recipe("org/m"), environment=variables, hub=Hub(variables))
    (found,) = run_preflight(request)
    assert (found.check, found.level) == ("model-fetched", "note")
    assert "the hub could not be read" in found.because
    assert inspect_start(request).budget.weights == -1


def test_offline_the_hub_is_not_asked(hub: HubServer) -> None:
    found = report(hub, recipe("org/m"), HF_HUB_OFFLINE="1")
    assert [one.check for one in found.findings] == ["model-missing"]
    assert hub.asked == []


def test_a_model_is_read_once_and_by_its_revision(hub: HubServer) -> None:
    there = Hub({"HF_ENDPOINT": f"{hub.url}/"})
    assert there.read("org/m").checkpoint is not None
    count = len(hub.asked)
    assert there.read("org/m") is there.read("org/m", "main")
    assert len(hub.asked) == count
    assert there.read("org/m", "v2").checkpoint is not None
    assert there.read("org/m", "v3").refused == "the hub has no such model"


def test_a_header_longer_than_the_first_request(hub: HubServer, tmp_path: Path) -> None:
    many = {f"model.layers.{one}.some.weight.of.a.long.name": ("BF16", (4, 4)) for one in range(3000)}
    hub.models["org/long"] = write_checkpoint(tmp_path / "l", DENSE, [many])
    found = Hub({"HF_ENDPOINT": hub.url}).read("org/long").checkpoint
    assert found.shards == read_checkpoint("org/long", hub.models["org/long"]).shards
    hub.whole = True
    assert Hub({"HF_ENDPOINT": hub.url}).read("org/m").checkpoint is not None  # the first part is enough
    assert "ranges are ignored" in Hub({"HF_ENDPOINT": hub.url}).read("org/long").unread


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("config", "could not be read"),
        ("shard", "100 bytes, and says that 18446744073709551615 are"),
        ("header", "200 bytes, and says that 201 are"),
        ("list", "could not be read"),
    ],
)
def test_what_is_damaged_is_told(
    hub: HubServer, damage: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hub.models["org/m"]
    if damage == "config":
        (folder / "config.json").write_text("{")
    elif damage == "shard":
        (folder / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 100)
    elif damage == "header":
        (folder / "model-00001-of-00002.safetensors").write_bytes((201).to_bytes(8, "little") + bytes(192))
    else:
        monkeypatch.setattr("hub_kit._listed", lambda _: json.loads("[]"))
    found = Hub({"HF_ENDPOINT": hub.url}).read("org/m")
    assert found.checkpoint is None
    assert told in found.unread
    assert not found.refused
