"""Two machines behind sshd that share a store over nginx; a module takes them by ``pytest_plugins``."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import Host, two_hosts, two_sshds
from ssh_kit import Sshd
from store_servers import nginx_store
from warm import warm_server


@pytest.fixture(scope="module")
def sshds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sshd, Sshd]]:
    with two_sshds(tmp_path_factory.mktemp("ssh")) as both:
        yield both


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
    with two_hosts(sshds, tmp_path, url, warm, monkeypatch) as both:
        yield both
