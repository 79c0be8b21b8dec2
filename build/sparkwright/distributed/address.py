"""Addresses of clusters: machines by ssh, or a running scheduler of Dask."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from sparkwright.base.errors import ConfigError
from sparkwright.base.ssh import SshHost, parse_host

_FORM = "ssh://[USER@]HOST[:PORT],…, tcp://HOST:PORT or tls://HOST:PORT"


@dataclass(frozen=True)
class ClusterAddress:
    """The machines that compile.

    Attributes:
        name: the address, as it is shown.
        hosts: machines on which workers are started over ssh, for the length of a build.
        scheduler: address of a running scheduler, whose workers were started by its owner.
    """

    name: str
    hosts: tuple[SshHost, ...] = ()
    scheduler: str = ""


def parse_cluster(text: str) -> ClusterAddress:
    """Return the cluster at the address *text*.

    Raises:
        ConfigError: it is no address, names a machine twice, or holds a password.
    """
    scheme, _, rest = text.partition("://")
    if scheme == "ssh":
        try:
            hosts = tuple(parse_host(host) for host in rest.rstrip("/").split(","))
        except ValueError as error:
            raise _no_cluster("ssh://…" if "password" in str(error) else text, str(error)) from error
        if len(set(hosts)) < len(hosts):
            raise _no_cluster(text, "it names a machine twice; a worker takes all cores of one")
        return ClusterAddress(text, hosts)
    if scheme in {"tcp", "tls"}:
        try:
            parts = urlsplit(text)
            whole = parts.hostname and parts.port and parts.netloc == rest.rstrip("/")
        except ValueError:
            whole = False
        if whole and "@" not in rest:
            return ClusterAddress(text, scheduler=f"{scheme}://{rest.rstrip('/')}")
        raise _no_cluster(f"{scheme}://…", "it is not the host and port of a scheduler")
    raise _no_cluster(text, "it is neither of ssh nor of a scheduler")


def _no_cluster(text: str, because: str) -> ConfigError:
    return ConfigError(f"{text!r} is no cluster", because=because, next_step=f"give {_FORM}")
