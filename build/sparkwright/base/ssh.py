"""Names of machines that are reached over ssh, and the command that starts a program there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_PLACE = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::([0-9]{1,5}))?")
_MOST_PORT = 65535
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

        *forwards* are ssh's options that forward ports; none by default, whatever the configuration says.
        """
        command = shlex.join(("exec", "sh", "-c", script, "sparkwright", *arguments))
        port = ("-p", str(self.port)) if self.port else ()
        user = ("-l", self.user) if self.user else ()
        return (*_SSH, *forwards, *port, *user, "--", self.host, command)


def parse_host(text: str) -> SshHost:
    """Return the machine of *text*, ``[user@]host[:port]``."""
    # Not urlsplit: it drops tabs and newlines, and takes the case from aliases.
    user, at, place = text.rpartition("@")
    if ":" in user:
        raise ValueError("it holds a password; ssh takes keys")
    found = _PLACE.fullmatch(place)
    if found is None:  # what follows may be a password with a comma in it
        raise ValueError(f"{place.partition(':')[0]!r} is no name of a machine, or what follows is no port")
    host = found[1] or found[2]
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is no name of a machine")
    if at and not _USER.fullmatch(user):
        raise ValueError(f"{user!r} is no name of a user")
    if found[3] and not 0 < int(found[3]) <= _MOST_PORT:
        raise ValueError(f"{found[3]} is no port")
    return SshHost(host, user, int(found[3] or 0))
