"""The image, built by ``ci/image.sh``, pushed, pulled by its digest, and run: as any user, and stopped.

It goes by ``ci/image-push.sh`` through a registry on this machine. The wheel in it serves the simulator.
Run by ``make test-image``, as root.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import checkpoint_kit
import pytest
import requests
from nspawn_kit import rootfs
from service_kit import served_wheel
from world import wait_until

from sparkwright.base.machine import free_port

PROGRAMS = ("podman", "buildah", "crun", "mmdebstrap", "unshare", "docker-registry")
BASE = "localhost/sparkwright-base:latest"
BUILT = "localhost/sparkwright:built"
IMAGE = "localhost/sparkwright:test"
_CA = Path("/etc/ssl/certs/ca-certificates.crt")
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""
_CONTAINERS = """\
[containers]
netns = "host"
cgroups = "disabled"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_REGISTRY = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
# crun takes a host whose cgroups are of one version; on another one it is shown the second alone.
_PROGRAM = """\
#!/bin/sh
exec unshare --mount --propagation private sh -c '
    [ -e /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 none /sys/fs/cgroup
    exec podman "$@"' sh "$@"
"""


def lacking() -> str:
    """Return the reason why no image can be built here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can make the base image"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class Podman:
    """Podman with its images and containers in a folder.

    Attributes:
        folder: holds them.
    """

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "podman"

    @property
    def environment(self) -> dict[str, str]:
        files = {
            "CONTAINERS_STORAGE_CONF": "storage.conf", "CONTAINERS_CONF": "containers.conf",
            "CONTAINERS_REGISTRIES_CONF": "registries.conf",
        }  # fmt: skip
        ours = {name: str(self.folder / file) for name, file in files.items()}
        return {**os.environ, **ours, "BUILDAH_ISOLATION": "chroot"}

    def set_up(self, rootfs: Path) -> None:
        """Write its configuration, and make the base image of *rootfs*."""
        (self.folder / "storage.conf").write_text(_STORAGE.format(folder=self.folder))
        (self.folder / "containers.conf").write_text(_CONTAINERS)
        self.program.write_text(_PROGRAM)
        self.program.chmod(0o755)
        container = self._buildah("from", "scratch")
        self._buildah("add", "--quiet", container, rootfs, "/")
        if _CA.exists():  # the host may trust an authority of its own
            self._buildah("copy", "--quiet", container, _CA, _CA)
            self._buildah("config", "--env", f"PIP_CERT={_CA}", container)
        self._buildah("commit", "--quiet", "--rm", "--format", "docker", container, BASE)

    def _buildah(self, *words: str | Path) -> str:
        done = subprocess.run(
            ["buildah", *map(str, words)], env=self.environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run podman to its end."""
        command = [self.program, *words]
        return subprocess.run(command, env=self.environment, check=False, capture_output=True, text=True)

    @contextlib.contextmanager
    def registry(self) -> Iterator[str]:
        """Give the address of a registry, from which this podman pulls without encryption."""
        port = free_port("127.0.0.1")
        config = self.folder / "registry.yml"
        config.write_text(_REGISTRY.format(folder=self.folder, port=port))
        text = f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n'
        (self.folder / "registries.conf").write_text(text)
        with (self.folder / "registry.log").open("wb") as log:
            child = subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log)
        try:
            wait_until(lambda: answers(f"http://127.0.0.1:{port}/v2/"), patience_s=30)
            yield f"127.0.0.1:{port}"
        finally:
            child.terminate()
            child.wait()

    def start(self, log: Path, *words: str | Path) -> subprocess.Popen[bytes]:
        """Start a container in the foreground, with its output in *log*."""
        with log.open("wb") as stream:
            return subprocess.Popen(
                [self.program, "run", "--rm", *words], env=self.environment, stdin=subprocess.DEVNULL,
                stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def remove(self) -> None:
        """End its containers, and remove all that it holds."""
        self.run("rm", "--all", "--force", "--time", "5")
        self.run("rmi", "--all", "--force")


ROOT = Path(__file__).parents[2]
ROOTFS = Path(os.environ.get("SPARKWRIGHT_ROOTFS") or Path.home() / ".cache" / "sparkwright-rootfs")
KEY = "sk-of-the-image"
NAME = "sparkwright-image-test"
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Podman with the image."""
    if why := lacking():
        pytest.skip(why)
    made = Podman(tmp_path_factory.mktemp("podman"))
    try:
        base = rootfs(ROOTFS)
        made.set_up(base)
        folder = tmp_path_factory.mktemp("dist")
        (version,) = (path.name for path in base.glob("usr/lib/python3.*[0-9]") if path.is_dir())
        wheel = served_wheel(
            folder, "0.24.0+spark.1", tag=f"py3-none-manylinux_2_28_{platform.machine()}",
            packages=f"/opt/sparkwright/lib/{version}/site-packages",
        )  # fmt: skip
        environment = {
            **made.environment, "ENGINE": str(made.program), "BASE": BASE, "RUNTIME": str(_runtime(folder)),
            "COMPANION": "none", "GITHUB_OUTPUT": "/dev/stdout",
        }  # fmt: skip
        ci(environment, "image.sh", wheel, BUILT)
        with made.registry() as address:
            told = ci(environment, "image-push.sh", BUILT, f"{address}/Owner/wheels:0.24.0-spark.1")
            pushed = dict(line.split("=", 1) for line in told.split())
            assert pushed["image"] == f"{address}/owner/wheels", "names of images have no capitals"
            made.run("rmi", "--force", BUILT, f"{pushed['image']}:0.24.0-spark.1")
            assert made.run("image", "exists", BUILT).returncode == 1
            pulled = f"{pushed['image']}@{pushed['digest']}"
            done = made.run("pull", pulled)
            assert done.returncode == 0, done.stderr
            made.run("tag", pulled, IMAGE)
        yield made
    finally:
        made.remove()


def ci(environment: dict[str, str], script: str, *words: str | Path) -> str:
    """Run a script of ci/; return what it says."""
    done = subprocess.run(
        [ROOT / "ci" / script, *words], env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


def _runtime(folder: Path) -> Path:
    """A runtime of one package, by the digest that the series' own has."""
    locked = (ROOT / "patchsets" / f"0.24-{platform.machine()}.requirements.txt").read_text()
    path = folder / "small.requirements.txt"
    path.write_text(next(line for line in locked.splitlines(keepends=True) if line.startswith("packaging==")))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe and its model, as the container sees it at /models."""
    place = tmp_path / "models"
    checkpoint_kit.write_checkpoint(place / "Tiny-1B", checkpoint_kit.DENSE)
    (place / "tiny.toml").write_text(
        'format = 1\nname = "Tiny-1B"\ntitle = "Tiny"\nmodel = "/models/Tiny-1B"\n[flags]\n'
        "max-model-len = 4096\nmax-num-seqs = 4\ngpu-memory-utilization = 0.1\n"
    )
    return place


def label(podman: Podman, name: str) -> str:
    shown = json.loads(podman.run("image", "inspect", IMAGE).stdout)[0]
    return str(shown["Labels"][name])


def test_its_labels_user_and_health_check(podman: Podman) -> None:
    assert label(podman, "org.opencontainers.image.version") == "0.24.0+spark.1"
    assert label(podman, "dev.sparkwright.wheel").endswith(f"{platform.machine()}.whl")
    shown = json.loads(podman.run("image", "inspect", IMAGE).stdout)[0]
    assert shown["User"] == "10001:10001"
    assert ":8000/health" in json.dumps(shown.get("Healthcheck") or shown["Config"])


@pytest.mark.parametrize("user", ["10001", "4711"])
@pytest.mark.parametrize("by_file", [True, False])
def test_it_serves_a_recipe(
    podman: Podman, folder: Path, tmp_path: Path, user: str, *, by_file: bool
) -> None:
    if (user, by_file) == ("4711", False):
        pytest.skip("one way to give the key is enough for another user")
    port, log = free_port("127.0.0.1"), tmp_path / "log"
    words = [f"--name={NAME}", f"--user={user}", f"--volume={folder}:/models:ro"]
    if by_file:
        key = tmp_path / "key"
        key.write_text(f"{KEY}\n")
        key.chmod(0o600)
        os.chown(key, int(user), 0)
        words += [
            f"--volume={key}:/run/secrets/api_key:ro",
            "--env=SPARKWRIGHT_API_KEY_FILE=/run/secrets/api_key",
        ]
    else:
        words += [f"--env=VLLM_API_KEY={KEY}"]
    child = podman.start(log, *words, IMAGE, "/models/tiny.toml", "--port", str(port))
    try:
        wait_until(lambda: chat(port, log, child) or child.poll() is not None, patience_s=PATIENCE_S)
        assert child.poll() is None, log.read_text()
        assert requests.get(f"http://127.0.0.1:{port}/v1/models", timeout=10).status_code == 401
        assert podman.run("exec", NAME, "id", "-u").stdout.strip() == user
        family = podman.run("exec", NAME, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
        assert "--served-model-name Tiny-1B" in family
        assert KEY not in family + log.read_text()
    finally:
        stopped = time.monotonic()
        podman.run("stop", "--time", "60", NAME)
    assert child.wait(timeout=60) == 0, log.read_text()
    assert time.monotonic() - stopped < 60, "it was not killed"
    assert "no process is left" in log.read_text()


def chat(port: int, log: Path, child: Any) -> str:
    body = {"model": "Tiny-1B", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
    try:
        answer = requests.post(
            f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=30,
            headers={"Authorization": f"Bearer {KEY}"},
        )  # fmt: skip
        return str(answer.json()["choices"][0]["message"]["content"])
    except (requests.RequestException, KeyError):
        return ""


def test_a_setting_of_no_flag_is_refused(podman: Podman, folder: Path) -> None:
    volume = f"--volume={folder}:/models:ro"
    done = podman.run("run", "--rm", volume, IMAGE, "/models/tiny.toml", "--set", "port=1")
    assert done.returncode == 10
    assert "--set port=1 cannot be used" in done.stderr
