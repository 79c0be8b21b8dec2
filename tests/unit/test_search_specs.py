"""Wheels by address, of which nothing states the size."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkwright.base.errors import BisectionError
from sparkwright.search import specs
from sparkwright.upstream import IndexSettings


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
        monkeypatch.setattr(specs, "_MOST_BYTES", 2 << 20)
        with pytest.raises(BisectionError, match="which no wheel has"):
            resolver._local(address)
        assert (tmp_path / "x.whl").stat().st_size <= 3 << 20
        server.shutdown()
