"""Machines of a cluster: an sshd each on this one, with a store, a program and a small toolchain."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from kit import write_program
from small_extension import make_builder, make_inputs
from ssh_kit import Sshd, wrap_ssh
from warm import PROGRAM
from world import SOURCE_ROOT

from sparkwright.base.ssh import parse_host
from sparkwright.distributed.cluster import Cluster
from sparkwright.git.repository import Repository, open_repository
from sparkwright.lock.model import Package
from sparkwright.native.build import Builder
from sparkwright.native.model import Inputs
from sparkwright.pipeline.remote_units import compile_elsewhere
from sparkwright.store.paths import open_store
from sparkwright.store.remote.client import RemoteSettings
from sparkwright.store.remote.tier import RemoteTier

SUPPORT = Path(__file__).parent
# The lock's toolchain is a hundred packages: what compiles takes the small one here, and all else as it is.
_WORKER = """\
import os, sys
from functools import partial
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {support!r})
from sparkwright.cli.main import main
from sparkwright.distributed import worker
{extra}
if sys.argv[1:3] == ["task", "units"]:
    from unit_kit import make_toolchain
    from sparkwright.cli import worker as task
    from sparkwright.pipeline import remote_units
    chain = replace(make_toolchain(Path({folder!r}, str(os.getpid()))), key={key!r})
    remote_units.prepare_toolchain = lambda *_, **__: chain
    exec({compiling!r})
sys.exit(main(sys.argv[1:]))
"""


@dataclass
class Host:
    """A machine that compiles for others.

    Attributes:
        sshd: how it is reached.
        folder: its store, and what else it has.
        url: the store that machines share.
        warm: address of the server that its program is a fork of.
    """

    sshd: Sshd
    folder: Path
    url: str
    warm: Path

    def install(
        self, *, key: str = "toolchain", extra: str = "", compiling: str = "", prefix: tuple[str, ...] = ()
    ) -> None:
        """Put the program on its PATH.

        *extra* is Python run before it starts, *compiling* the same where it compiles, *prefix* words before
        it, which make it an interpreter of its own.
        """
        self.folder.mkdir(exist_ok=True)
        script = self.folder / "worker.py"
        text = _WORKER.format(
            support=str(SUPPORT), folder=str(self.folder), key=key, extra=extra, compiling=compiling
        )
        if not prefix:
            (self.folder / "warm.py").write_text(text)
            text = PROGRAM.format(address=str(self.warm), script=str(self.folder / "warm.py"))
        script.write_text(text)
        settings = {
            "PYTHONPATH": str(SOURCE_ROOT),
            "HOME": str(self.folder),
            "SPARKWRIGHT_HOME": str(self.folder / "store"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "SPARKWRIGHT_STORE_URL": self.url,
            "SPARKWRIGHT_TEST_HOST": str(self.folder),
        }
        exports = "".join(f"export {name}='{value}'\n" for name, value in settings.items())
        program = shlex.join([*prefix, sys.executable, str(script)])
        self.sshd.install_on_path(f'{exports}exec {program} "$@"\n')

    @property
    def shown(self) -> str:
        """The machine as messages and events name it."""
        return f"127.0.0.1:{self.sshd.port}"

    def workers(self) -> list[psutil.Process]:
        """Return the processes of its workers and what they started."""
        found, ours = [], f"\0SPARKWRIGHT_TEST_HOST={self.folder}\0".encode()
        for place in Path("/proc").glob("[0-9]*/environ"):  # psutil reads more of each, and tests ask often
            with contextlib.suppress(OSError, psutil.Error):
                if ours in b"\0" + place.read_bytes():
                    process = psutil.Process(int(place.parent.name))
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found


@dataclass
class Home:
    """The machine that builds."""

    repository: Repository
    builder: Builder
    inputs: Inputs


def make_home(folder: Path, url: str, hosts: list[Host]) -> Home:
    """Return the machine that builds on *hosts*, with an empty store of its own."""
    folder.mkdir()
    remote = RemoteTier(RemoteSettings(url=url, key_file=folder / "key.pem")) if url else None
    store = open_store(folder / "store", remote)
    repository = open_repository(folder / "git")
    builder = make_builder(store, repository, folder / "logs")
    native = builder.lock.native
    release = Package(filename="toolkit.json", sha256="0" * 64, size=1)
    toolkit = msgspec.structs.replace(native.toolkit, release=release)
    lock = msgspec.structs.replace(builder.lock, native=msgspec.structs.replace(native, toolkit=toolkit))
    found = tuple(parse_host(host.sshd.host) for host in hosts)
    elsewhere = partial(compile_elsewhere, Cluster(hosts=found, store=store)) if hosts else None
    inputs = make_inputs(repository, folder)
    builder = replace(builder, lock=lock, native=lock.native, elsewhere=elsewhere)
    return Home(repository, builder, inputs)


def cluster(hosts: list[Host]) -> tuple[str, str]:
    """Return the words that ask for *hosts*."""
    return "--cluster", "ssh://" + ",".join(host.sshd.host for host in hosts)


def card(host: Host, capability: str) -> None:
    """Let the machine's ``nvidia-smi`` name a card with that compute capability, or find none."""
    script = f"case $1 in *compute_cap) echo {capability};; *) exit 1;; esac"
    write_program(host.sshd.folder / "programs" / "nvidia-smi", script)


def use_ssh(monkeypatch: pytest.MonkeyPatch, hosts: list[Host]) -> None:
    """Let ``ssh`` be the client that has the keys of every one of *hosts*."""
    folder = hosts[0].folder.parent / "client"
    folder.mkdir(exist_ok=True)
    known = "".join((host.sshd.folder / "known").read_text() for host in hosts)
    (folder / "known").write_text(known)
    keys = "".join(f"  IdentityFile {host.sshd.folder}/client\n" for host in hosts)
    known_hosts = f"  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking yes\n"
    (folder / "config").write_text(f"Host *\n{keys}  IdentitiesOnly yes\n{known_hosts}")
    monkeypatch.setenv("PATH", f"{wrap_ssh(folder, folder / 'config')}:{os.environ['PATH']}")
