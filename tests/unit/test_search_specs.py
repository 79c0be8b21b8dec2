"""Ends of a bisection: patchsets on releases, upstream's wheels, and wheels by address."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkwright.base.errors import BisectionError
from sparkwright.pipeline import open_checkout
from sparkwright.search import specs
from sparkwright.upstream import IndexSettings
from sparkwright.wheel.names import parse_name

ROOT = Path(__file__).parents[2]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_wheel_by_address_is_fetched_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served/x.whl").write_bytes(bytes(5 << 20))
    serve = functools.partial(_Quiet, directory=str(tmp_path / "served"))
    access: Any = SimpleNamespace(settings=IndexSettings(attempts=2, backoff_s=0.01))
    checkout: Any = None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/x.whl"
        resolver = specs.Resolver(checkout, access, tmp_path, "", "")
        assert resolver._local(address).stat().st_size == 5 << 20
        monkeypatch.setattr(specs, "MOST_WHEEL_BYTES", 2 << 20)
        with pytest.raises(BisectionError, match="which no wheel has"):
            resolver._local(address)
        assert (tmp_path / "x.whl").stat().st_size <= 3 << 20
        server.shutdown()


@pytest.fixture(scope="module")
def resolver(tmp_path_factory: pytest.TempPathFactory) -> specs.Resolver:
    access: Any = None  # neither releases nor wheels here are looked for in the store
    return specs.Resolver(open_checkout(ROOT), access, tmp_path_factory.mktemp("ends"), "", "")


def test_an_end_names_its_own_patchset(resolver: specs.Resolver) -> None:
    with_own, default = (resolver.resolve(text) for text in ("0.24@0.24.0", "0.33.0"))
    assert "hybrid-hit" in {carry.name for carry in with_own.carries}
    assert "hybrid-hit" not in {carry.name for carry in default.carries}


@pytest.mark.parametrize("release", ["0.24.0", "0.33.0"])
def test_upstreams_wheel_has_the_lock_of_its_release(resolver: specs.Resolver, release: str) -> None:
    name = parse_name(f"vllm-{release}-cp38-abi3-manylinux_2_28_x86_64.whl")
    found = resolver._stock_wheel("x.whl", name, ())
    assert found.lock.release.version == release
    assert resolver._stock_wheel("x.whl", parse_name("vllm-0.9.0-py3-none-any.whl"), ()).lock is None
