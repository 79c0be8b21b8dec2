"""Addresses of clusters: machines that ssh reaches."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.base.errors import ConfigError
from sparkwright.base.ssh import SshHost, parse_host


@dataclass(frozen=True)
class ClusterAddress:
    """The machines of a cluster.

    Attributes:
        name: the address, as it is shown.
        hosts: the machines, on each of which a worker is started for the length of a command.
    """

    name: str
    hosts: tuple[SshHost, ...]


def parse_cluster(text: str) -> ClusterAddress:
    """Return the cluster at the address *text*, ``ssh://[USER@]HOST[:PORT],…``.

    Raises:
        ConfigError: it is no address, names a machine twice, or holds a password.
    """
    scheme, _, rest = text.partition("://")
    shown = text if "@" not in text else f"{scheme}://…"  # what stands before an @ may be a password
    if scheme != "ssh":
        raise _no_cluster(shown, "its machines are not reached by ssh")
    try:
        hosts = tuple(parse_host(host) for host in rest.rstrip("/").split(","))
    except ValueError as error:
        raise _no_cluster(shown, str(error)) from error
    if len({host.shown for host in hosts}) < len(hosts):  # it is also the name of a worker
        raise _no_cluster(shown, "it names a machine twice; a worker takes all cores of one")
    return ClusterAddress(text, hosts)


def _no_cluster(text: str, because: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is no cluster", because=because, next_step="give ssh://[USER@]HOST[:PORT],…"
    )
