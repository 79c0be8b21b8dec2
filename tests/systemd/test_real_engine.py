"""A real vLLM on the CPU as a service of the system: it answers, its engine is stopped, and it comes back."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import wheelkit
from nspawn_kit import SHARED, Container, lacking
from real_kit import RealServer, make_server
from systemd_kit import NAME, Service
from world import wait_until

from sparkwright.rehearsal.tree import site_packages

PATIENCE_S = 900.0
QUESTION = "What is the capital of France?"

pytestmark = pytest.mark.upstream


@pytest.fixture(scope="module")
def server() -> RealServer:
    if why := lacking():
        pytest.skip(why)
    return make_server()


@pytest.fixture(scope="module")
def seen(server: RealServer) -> tuple[Path, ...]:
    """The store's environments: the installed tree lies over others."""
    return (server.tree.python.parents[2],)


def wheel_over(tree: Path, folder: Path) -> Path:
    """A wheel that holds no vLLM of its own, but shows where the installed one in *tree* is."""
    version = "0.24.0+cpu.1"  # by which vLLM knows that it is for the CPU
    info = f"vllm-{version}.dist-info"
    files = {
        "vllm_below.pth": f"import site; site.addsitedir({str(tree)!r})\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return wheelkit.pack(folder / f"vllm-{version}-py3-none-any.whl", wheelkit.with_record(files, info))


def test_a_real_engine_answers_wedges_and_comes_back(
    container: Container, shared: Path, server: RealServer
) -> None:
    model = shutil.copytree(server.model, shared / "model")
    for path in model.iterdir():
        path.chmod(0o644)
    text = re.sub(r"^model = .*", f'model = "{SHARED}/model"', server.recipe.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^name = .*", f'name = "{NAME}"', text, flags=re.MULTILINE)
    (shared / "real.toml").write_text(text)
    wheel = wheel_over(site_packages(server.tree.python), shared)
    service = Service(container)
    words = ("--unlocked", "--wheel", SHARED / wheel.name)
    done = service.install(SHARED / "real.toml", *words)
    assert done.returncode == 0, done.stderr + service.journal()
    service.change(words="--stall-seconds 60 --no-warm-up")
    assert "Paris" in service.chat(QUESTION)
    assert service.key not in container.run("ps", "-eww", "-o", "args").stdout + service.journal()
    wait_until(lambda: service.status["serves"], patience_s=PATIENCE_S)
    stopped = container.run("pkill", "--signal", "STOP", "--full", "VLLM::EngineCor")
    assert stopped.returncode == 0
    assert service.get("/health") == 200
    wait_until(lambda: "wedged" in service.journal(), patience_s=PATIENCE_S)
    wait_until(lambda: "Paris" in service.chat(QUESTION), patience_s=PATIENCE_S)
    service.systemctl("stop", f"sparkwright-{NAME}.service")
    assert "VLLM" not in container.run("ps", "-eww", "-o", "args").stdout
