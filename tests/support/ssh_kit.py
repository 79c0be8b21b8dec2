"""A real sshd on this machine, and wheels whose server is the simulator."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from kit import write_program
from rehearsal_kit import SERVE, SOURCES
from small_release import SmallRelease
from tiny_release import make_tiny
from wheelkit import plain_wheel
from world import SOURCE_ROOT, wait_until

from sparkwright.base.machine import free_port

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
TORCH = "2.11.0"
SSHD_CONFIG = """\
HostKey {folder}/host
AuthorizedKeysFile {folder}/client.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""
_HERE = """\
ListenAddress 127.0.0.1
Port {port}
SetEnv PATH={folder}/programs:/usr/local/bin:/usr/bin:/bin
"""
SSH_CONFIG = """\
Host *
  IdentityFile {folder}/client
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking yes
"""
_RECIPE = """\
format = 1
name = "simulated"
title = "The simulator, in a wheel"
model = "simulated"

[environment]
SIMULATOR_PATH = "{path}"

[profile]
categories = ["code"]
least-requests = 4
requests-per-client = 1
max-tokens = 48
waves = 1
off-grid = [3]
"""


@dataclass(frozen=True)
class Sshd:
    """A running sshd."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def host(self) -> str:
        """The machine, as ssh names it."""
        return f"{getpass.getuser()}@127.0.0.1:{self.port}"

    def install_on_path(self, script: str) -> None:
        """Let ``sparkwright`` on that machine's PATH be the shell *script*."""
        write_program(self.folder / "programs" / "sparkwright", script)

    def connections(self) -> list[psutil.Process]:
        """Return the processes of sshd that serve one connection each."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    def sessions(self) -> list[psutil.Process]:
        """Return the processes of sshd that serve connections, and those that these have for their users."""
        found = self.connections()
        for process in self.connections():
            with contextlib.suppress(psutil.Error):
                found += [child for child in process.children() if child.name().startswith("sshd")]
        return found


@contextlib.contextmanager
def running_sshd(folder: Path) -> Iterator[Sshd]:
    """Run an sshd with keys of its own; skip the test where there is none."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no OpenSSH server and client are installed here")
    folder.mkdir()
    for name in ("host", "client"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True, timeout=30
        )
    port = free_port()
    (folder / "sshd").write_text((SSHD_CONFIG + _HERE).format(port=port, folder=folder))
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "ssh").write_text(SSH_CONFIG.format(folder=folder))
    wrap_ssh(folder, folder / "ssh")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd, as root, confines a part of itself
    log = (folder / "log").open("wb")
    with log, subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd"], stderr=log) as process:
        sshd = Sshd(folder, port, process)
        try:
            wait_until(lambda: _listens(port) or process.poll() is not None)
            if process.poll() is not None:
                pytest.skip(f"sshd cannot run here: {(folder / 'log').read_text().strip()}")
            yield sshd
        finally:
            for one in sshd.sessions():
                with contextlib.suppress(psutil.Error):
                    one.kill()
            process.kill()


def wrap_ssh(folder: Path, configuration: Path) -> Path:
    """Make an ``ssh`` of that configuration; return the folder for PATH."""
    script = f'exec {shutil.which("ssh")} -F {configuration} "$@"'
    return write_program(folder / "bin" / "ssh", script).parent


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def fault_file(fault: str) -> tuple[tuple[str, str], ...]:
    """Return the change of a release that gives its server *fault*."""
    return (("vllm/fault.py", f"FAULT = {fault!r}\n"),)


def served_release(*, changes: tuple[tuple[str, str], ...] = (), speed: int = 60) -> SmallRelease:
    """Return a release whose ``vllm serve`` is the simulator, with the fault that ``vllm/fault.py`` names.

    By default it is slower than those of other tests: where an answer takes a millisecond, a busy machine may
    run neither server nor client meanwhile, and all of it comes at once, as from a proxy that buffers.
    """
    found = 'import os\nsys.path += os.environ["SIMULATOR_PATH"].split(":")\n'
    assert SERVE.count("from sparkwright") == 1
    serve = SERVE.replace("from sparkwright", f"{found}from sparkwright").replace('"600"', f'"{speed}"')
    sources = {**SOURCES, "vllm/entrypoints/cli/main.py": serve, **dict(changes)}
    return make_tiny(changes=tuple(sources.items()))


def write_recipe(path: Path) -> Path:
    """Write the recipe that serves such a release."""
    found = f"{SOURCE_ROOT}:{sysconfig.get_path('purelib')}"
    path.write_text(_RECIPE.format(path=found))
    return path


def torch_wheel() -> tuple[str, bytes]:
    """Name and bytes of a torch with nothing in it, which the wheels require."""
    with tempfile.TemporaryDirectory() as folder:
        path = plain_wheel(Path(folder), "torch", TORCH)
        return path.name, path.read_bytes()
