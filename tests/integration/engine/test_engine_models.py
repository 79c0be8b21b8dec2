"""Models are fetched by huggingface_hub before a server starts: the files that vLLM loads, and no others."""

import asyncio
import contextlib
import errno
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub_kit import HubServer, hub_server
from kit import Recorder
from preflight_kit import recipe

from sparkwright.base.errors import FetchError
from sparkwright.base.events import subscribe
from sparkwright.engine.child.fetch_model import files_of
from sparkwright.engine.models import fetch_models
from sparkwright.engine.server.failures import ServerFailedError
from sparkwright.engine.server.launch import start_server
from sparkwright.engine.server.lifecycle import ServerProcess
from sparkwright.recipes.recipe import Recipe

FAKE = Path(__file__).parents[2] / "support" / "fake_server.py"
MIB = 1 << 20
INDEX = "model.safetensors.index.json"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    model = tmp_path / "made" / "m"
    model.mkdir(parents=True)
    for name in ("a.safetensors", "b.safetensors", "unused.safetensors", "image.png"):
        (model / name).write_bytes(os.urandom(2 * MIB))
    (model / INDEX).write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    (model / "config.json").write_text("{}")
    with hub_server() as server:
        server.models["org/m"] = model
        yield server


@pytest.fixture
def variables(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    off = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_ETAG_TIMEOUT": "2"}
    return {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), **off}


def fetch(served: Recipe, variables: dict[str, str], folder: Path) -> int:
    return asyncio.run(fetch_models(served, Path(sys.executable), variables, folder))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("home/hub/models--org--m/snapshots/*/*")}


def test_what_vllm_loads_is_fetched_with_its_bytes_told(hub, variables, tmp_path):
    recorder = Recorder()
    with subscribe(recorder):
        stored = fetch(recipe("org/m"), variables, tmp_path)
    assert names(tmp_path) == {"a.safetensors", "b.safetensors", INDEX, "config.json"}
    assert 4 * MIB < stored < 5 * MIB
    [started] = [event.data for event in recorder.events if event.kind == "task.started"]
    assert (started["name"], started["unit"]) == ("fetch org/m", "B")
    assert 4 * MIB <= started["total"] < 5 * MIB
    sent = hub.sent
    again = Recorder()
    with subscribe(again):
        assert fetch(recipe("org/m"), variables, tmp_path) == stored
    assert not [event for event in again.events if event.kind == "task.started"], "nothing is missing"
    assert hub.sent - sent < MIB


def test_a_download_that_is_ended_continues(hub, variables, tmp_path):
    hub.slow = "b.safetensors"

    async def interrupted() -> None:
        work = fetch_models(recipe("org/m"), Path(sys.executable), variables, tmp_path)
        fetching = asyncio.create_task(work)
        while not fetching.done() and "a.safetensors" not in names(tmp_path):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        fetching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await fetching

    asyncio.run(interrupted())
    assert "b.safetensors" not in names(tmp_path)
    blobs = tmp_path / "home" / "hub" / "models--org--m" / "blobs"
    assert not [*blobs.glob("*.incomplete")], "no part is left that nothing can use"
    killed, live = blobs / "aa.0123abcd.incomplete", blobs / "bb.0123abcd.incomplete"
    killed.touch()
    os.utime(killed, (0, 0))
    live.touch()
    hub.slow, before = "", hub.sent
    fetch(recipe("org/m"), variables, tmp_path)
    assert names(tmp_path) == {"a.safetensors", "b.safetensors", INDEX, "config.json"}
    assert hub.sent - before < 3 * MIB, "what had arrived is not fetched twice"
    assert [*blobs.glob("*.incomplete")] == [live], "another process may be fetching"


def test_a_gated_model_says_what_to_do(hub: HubServer, variables: dict[str, str], tmp_path: Path) -> None:
    hub.gated.add("org/m")
    with pytest.raises(FetchError, match="org/m cannot be fetched") as caught:
        fetch(recipe("org/m"), variables, tmp_path)
    assert "accept the licence" in caught.value.next_step
    fetch(recipe("org/m"), {**variables, "HF_TOKEN": hub.token}, tmp_path)
    assert "a.safetensors" in names(tmp_path)


def test_an_unknown_model_is_refused_and_a_cached_one_served_without_the_hub(hub, variables, tmp_path):
    with pytest.raises(FetchError) as caught:
        fetch(recipe("org/other"), variables, tmp_path)
    assert "correct the model's name" in caught.value.next_step
    fetch(recipe("org/m"), variables, tmp_path)
    gone = {**variables, "HF_ENDPOINT": "http://127.0.0.1:9"}
    recorder = Recorder()
    with subscribe(recorder):
        assert fetch(recipe("org/m"), gone, tmp_path) > 4 * MIB
    assert "warning" in [event.kind for event in recorder.events]
    with pytest.raises(FetchError, match="org/n"):
        fetch(recipe("org/n"), gone, tmp_path)


def test_a_full_disk_is_named_and_another_error_of_the_system_is_not(tmp_path: Path) -> None:
    stand_in = tmp_path / "python" / "huggingface_hub"
    stand_in.mkdir(parents=True)
    (stand_in / "utils.py").write_text("disable_progress_bars = dict")
    variables = {**os.environ, "PYTHONPATH": str(stand_in.parent), "HF_HOME": str(tmp_path / "home")}
    for number, because, expected in (
        (errno.ENOSPC, "OSError", "free some room in"),
        (errno.EDQUOT, "RuntimeError", "free some room in"),
        (errno.ECONNRESET, "OSError", "start again"),
    ):
        (stand_in / "__init__.py").write_text(
            f"def HfApi():\n"
            f"    try: raise OSError({number}, 'broken')\n"
            f"    except OSError as error: raise {because}({number}, 'broken') from error\n"
            f"hf_hub_download = snapshot_download = None\n"
        )
        with pytest.raises(FetchError, match="broken") as caught:
            fetch(recipe("org/m"), variables, tmp_path)
        assert expected in caught.value.next_step


def test_a_model_of_which_a_part_is_cached_is_not_served_without_the_hub(hub, variables, tmp_path):
    fetch(recipe("org/m"), variables, tmp_path)
    [weights] = tmp_path.glob("home/hub/models--org--m/snapshots/*/b.safetensors")
    weights.unlink()
    gone = {**variables, "HF_ENDPOINT": "http://127.0.0.1:9"}
    with pytest.raises(FetchError, match="org/m"):
        fetch(recipe("org/m"), gone, tmp_path)


def test_a_repository_without_a_file_of_its_index_is_refused(hub, variables, tmp_path):
    (hub.models["org/m"] / "b.safetensors").unlink()
    with pytest.raises(FetchError, match=r"names b\.safetensors, which"):
        fetch(recipe("org/m"), variables, tmp_path)


def test_an_index_that_cannot_be_read_is_the_reason_for_which_nothing_is_served(hub, variables, tmp_path):
    (hub.models["org/m"] / INDEX).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(FetchError, match="org/m"):
        fetch(recipe("org/m"), variables, tmp_path)


def test_folders_made_up_models_and_work_offline_ask_no_hub(hub, variables, tmp_path):
    assert fetch(recipe(hub.models["org/m"]), variables, tmp_path) > 8 * MIB
    assert fetch(recipe("org/m", flags={"load-format": "dummy"}), variables, tmp_path) == 0
    assert fetch(recipe("org/m"), {**variables, "HF_HUB_OFFLINE": "1"}, tmp_path) == 0
    assert hub.asked == []


@pytest.mark.parametrize(
    ("names", "load_format", "index", "loaded"),
    [
        (["a.bin", "b.safetensors", "original/b.safetensors"], "auto", {}, ["b.safetensors"]),
        (["a.bin", "c.pt"], "auto", {}, ["a.bin"]),
        (["consolidated.safetensors", "model.safetensors"], "auto", {}, ["consolidated.safetensors"]),
        (
            ["consolidated.safetensors", "m.safetensors"],
            "safetensors",
            {"x": "m.safetensors"},
            ["m.safetensors"],
        ),
        (["sub/m.safetensors", "n.safetensors"], "auto", {"x": "sub/m.safetensors"}, ["sub/m.safetensors"]),
    ],
)
def test_the_weights_are_those_that_vllm_chooses(names, load_format, index, loaded):
    assert files_of([*names, "config.json", "a.png"], load_format, index) == [*loaded, "config.json"]


def before_start(folder: Path, models: Callable[[], Awaitable[int]], **options: Any) -> ServerProcess:
    """A server that never listens, with *models* fetched first."""
    words = [sys.executable, FAKE, "--port", "{port}", "--fault", "never-listens"]
    made = start_server(words, folder=folder, end_s=0.5, **options)
    return ServerProcess(replace(made.launch, models=models))


async def boot(server: ServerProcess) -> None:
    async with server:
        pass


@pytest.mark.parametrize(("stored", "limit"), [(0, 1), (400_000_000, 3)])
def test_the_boot_begins_when_the_models_are_here_and_large_ones_have_more_time(
    tmp_path, monkeypatch, stored, limit
):
    monkeypatch.setattr("sparkwright.engine.server.lifecycle.BOOT_S", 1.0)

    async def models() -> int:
        assert server.pid is None, "nothing runs while models are fetched"
        return stored

    server = before_start(tmp_path, models)
    with pytest.raises(ServerFailedError, match=f"no answer within {limit} s"):
        asyncio.run(boot(server))


def test_nothing_is_started_without_its_model(tmp_path: Path) -> None:
    async def models() -> int:
        raise FetchError("no model")

    server = before_start(tmp_path, models)
    with pytest.raises(FetchError, match="no model"):
        asyncio.run(boot(server))
    assert server.pid is None
    assert not server.log.exists()
