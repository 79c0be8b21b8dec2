"""Names of machines that are reached over ssh, and the command that starts a program there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SSH = (
    "ssh", "-T", "-oBatchMode=yes", "-oConnectTimeout=15",
    "-oServerAliveInterval=15", "-oServerAliveCountMax=4", "-oForwardAgent=no", "-oForwardX11=no",
)  # fmt: skip


@dataclass(frozen=True)
class SshHost:
    """A machine, as ssh names it.

    Attributes:
        host: its name, its address, or an alias in the user's configuration of ssh.
        user: the user there; by default that of ssh's configuration.
        port: the port of its sshd; 0 for that of ssh's configuration.
    """

    host: str
    user: str = ""
    port: int = 0

    @property
    def shown(self) -> str:
        """Return the machine as it is named in progress and errors."""
        return f"{self.host}:{self.port}" if self.port else self.host

    def argv(
        self, script: str, *arguments: str, forwards: Sequence[str] = ("-oClearAllForwardings=yes",)
    ) -> tuple[str, ...]:
        """Return the command that runs the shell *script* there with *arguments*, which are no part of it.

        Args:
            script: text of a POSIX shell script.
            arguments: its ``$1``, ``$2``…
            forwards: options of ssh that forward ports; by default none, whatever the configuration says.
        """
        command = shlex.join(("exec", "sh", "-c", script, "sparkwright", *arguments))
        port = ("-p", str(self.port)) if self.port else ()
        user = ("-l", self.user) if self.user else ()
        return (*_SSH, *forwards, *port, *user, "--", self.host, command)


def parse_host(text: str) -> SshHost:
    """Return the machine of *text*, ``[user@]host[:port]``.

    Raises:
        ValueError: it is none, or holds a password; the text is the reason.
    """
    parts = urlsplit(f"//{text}")
    port, host, user = parts.port, parts.hostname or "", unquote(parts.username or "")
    if parts.password is not None:
        raise ValueError("it holds a password; ssh takes keys")
    if parts.path or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is no name of a machine")
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is no name of a machine")
    if user and not _USER.fullmatch(user):
        raise ValueError(f"{user!r} is no name of a user")
    return SshHost(host, user, port or 0)
