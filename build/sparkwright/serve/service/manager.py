"""Starting and stopping a service: by systemd, and a canary that shows whether it answers."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Protocol

from sparkwright.base.errors import ProcessError, ServerEndedError
from sparkwright.serve.service.model import Scope

_STOP_S = 300.0  # more than the unit's own limit
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - replaced, not bound


class ServiceManager(Protocol):
    """Starts and stops one service."""

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            ServerEndedError: it did not become ready.
        """

    def stop(self) -> None:
        """Stop it and wait until it has ended."""

    def answers(self) -> str:
        """Return empty if a request gets tokens, else the failure."""


@dataclass(frozen=True)
class SystemdManager:
    """A unit of systemd.

    Attributes:
        scope: of the system or of the user.
        url: root of its server.
    """

    unit: str
    scope: Scope
    url: str
    api_key: str

    def call(self, *words: str, accept: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """Run ``systemctl`` and return its exit status and output.

        Raises:
            ProcessError: it failed with a status that is not in *accept*.
            ToolError: there is no systemctl.
        """
        from sparkwright.base.process import run

        scope = ("--user",) if self.scope == "user" else ()
        # A start has the unit's limit, which grows while a model is fetched.
        limit = None if words[0] == "start" else _STOP_S
        done = run(["systemctl", *scope, *words], timeout=limit, accept=accept)
        return done.status, done.text

    def start(self) -> None:
        """Start it and wait until it is ready; a unit of type notify is, once a request got tokens."""
        try:
            self.call("reset-failed", self.unit, accept=tuple(range(256)))
            self.call("start", self.unit)
        except ProcessError as error:
            flag = " --user" if self.scope == "user" else ""
            raise ServerEndedError(
                f"{self.unit} did not become ready",
                because=error.because,
                next_step=f"journalctl{flag} -u {self.unit} -e",
            ) from error

    def stop(self) -> None:
        """Stop it and wait until it has ended."""
        self.call("stop", self.unit)

    def answers(self) -> str:
        """Return empty if a request gets tokens, else the failure."""
        return canary_failure(self.url, self.api_key)


def canary_failure(url: str, api_key: str) -> str:
    """Request a few tokens from the server at *url*; return empty once they came, else the failure."""
    from sparkwright.base.errors import SparkwrightError
    from sparkwright.engine.client import Endpoint, check_endpoint, open_session
    from sparkwright.engine.client.request import canary
    from sparkwright.engine.deadlines import Deadlines

    async def ask() -> str:
        endpoint, deadlines = Endpoint(url, "", api_key), Deadlines()
        async with open_session(endpoint) as session:
            facts = await check_endpoint(session, endpoint, deadlines)
            named = Endpoint(url, facts.model, api_key)
            return await canary(session, named, deadlines, 1.0)

    try:
        return asyncio.run(ask())
    except SparkwrightError as error:
        return str(error)


def reachable(host: str, port: int) -> str:
    """Return the root of a server that listens at *host* and *port*, as this machine reaches it."""
    name = _EVERYWHERE.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def has_systemd(scope: Scope) -> bool:
    """Tell if systemd runs this machine, and for *scope* ``user`` the user's session."""
    if scope == "system":
        return os.path.isdir("/run/systemd/system")  # noqa: PTH112 - sd_booted(3) defines it so
    return bool(os.environ.get("XDG_RUNTIME_DIR")) and os.path.isdir("/run/systemd/system")  # noqa: PTH112
