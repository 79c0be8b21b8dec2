"""Two machines behind sshd that share a store over nginx; a module takes them by ``pytest_plugins``."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster_kit import Host, use_ssh
from ssh_kit import Sshd, running_sshd
from store_servers import nginx_store
from warm import warm_server


@pytest.fixture(scope="module")
def sshds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sshd, Sshd]]:
    folder = tmp_path_factory.mktemp("ssh")
    with running_sshd(folder / "one") as one, running_sshd(folder / "two") as two:
        yield one, two


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_server(tmp_path_factory.mktemp("warm")) as address:
        yield address


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with nginx_store(tmp_path / "nginx") as address:
        yield address


@pytest.fixture
def hosts(
    sshds: tuple[Sshd, Sshd], tmp_path: Path, url: str, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Host]]:
    """A machine with an empty store behind each of *sshds*; what is left of its workers is killed."""
    made = [Host(sshd, tmp_path / f"host {number}", url, warm) for number, sshd in enumerate(sshds)]
    for host in made:
        host.install()
    use_ssh(monkeypatch, made)
    yield made
    for host in made:
        for process in host.workers():
            with contextlib.suppress(psutil.Error):
                process.kill()
