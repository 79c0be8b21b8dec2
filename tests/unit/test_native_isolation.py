"""Compiling without a network."""

import os
import socket
import sys
from pathlib import Path

import pytest

from sparkwright.base.errors import ToolError
from sparkwright.base.process.run import run, which
from sparkwright.native.host import isolated, require_isolation

CALL = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"


@pytest.fixture
def possible() -> None:
    try:
        require_isolation()
    except ToolError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("possible")
def test_nobody_can_be_called_from_inside(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = [sys.executable, "-c", CALL, str(server.getsockname()[1])]
        assert run(call).status == 0, "from outside it can"
        done = run(isolated(call), accept=(1,))
    assert "unreachable" in done.stderr


@pytest.mark.usefixtures("possible")
def test_all_else_is_as_outside(tmp_path: Path) -> None:
    done = run(isolated(["sh", "-c", 'pwd && echo "$1" && echo made > file && exit 3', "sh", "-n; $x"]),
               cwd=tmp_path, accept=(3,))  # fmt: skip
    assert done.text == f"{tmp_path}\n-n; $x"
    assert (tmp_path / "file").owner() == tmp_path.owner()
    assert (tmp_path / "file").read_text() == "made\n"


def test_root_needs_no_user_namespace_and_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert isolated(["cc", "-c"]) == ("unshare", "-n", "--", "cc", "-c")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert isolated(["cc", "-c"]) == ("unshare", "-r", "-n", "--", "cc", "-c")


def test_where_it_is_forbidden_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forbidding = tmp_path / "unshare"
    forbidding.write_text(
        f"#!{which('sh')}\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"
    )
    forbidding.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="cannot be kept off the network") as caught:
        require_isolation()
    assert "Operation not permitted" in caught.value.because
    assert "user namespaces" in caught.value.next_step


def test_without_the_program_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="cannot be kept off the network") as caught:
        require_isolation()
    assert "unshare" in caught.value.because
    assert "util-linux" in caught.value.next_step
