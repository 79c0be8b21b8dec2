"""Podman with a store of its own, and a base image that mmdebstrap made: nothing is pulled."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("podman", "buildah", "crun", "mmdebstrap", "unshare")
BASE = "localhost/sparkwright-base:latest"
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
        files = {"CONTAINERS_STORAGE_CONF": "storage.conf", "CONTAINERS_CONF": "containers.conf"}
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
