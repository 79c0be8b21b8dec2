"""Two Sparks: the facts of each end's network, and findings about the link between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sparkwright.base.config import Model
from sparkwright.serve.preflight.finding import Finding, finding

FAST_MBPS = 100_000
"""A Spark's ConnectX-7 ports run at 200 Gb/s, and its other port at 10."""

_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET")
_INTERFACE = re.compile(r"class/net/([^/]+)/operstate")
_PORT = re.compile(r"class/infiniband/([^/]+)/ports/\d+/state")
_HANGS = "2.28.9"
ACTIVE = "ACTIVE"


class Interface(Model, frozen=True):
    """A network interface.

    Attributes:
        mbps: speed in Mb/s; -1 where the driver does not say, as without a cable.
    """

    name: str
    mbps: int = -1
    up: bool = False
    physical: bool = True


class LinkFacts(Model, frozen=True):
    """One end.

    Attributes:
        rdma: states of the ports of RDMA devices, by names such as ``rocep1s0f0`` or ``mlx5_0``.
        variables: NCCL's and Gloo's variables, as far as they are set.
        nccl: version of NCCL in the environment; empty where it is not known.
    """

    host: str
    interfaces: tuple[Interface, ...] = ()
    rdma: dict[str, str] = {}  # noqa: RUF012 - msgspec copies empty defaults
    variables: dict[str, str] = {}  # noqa: RUF012
    nccl: str = ""

    @property
    def fast(self) -> tuple[Interface, ...]:
        """The interfaces that are up and fast."""
        return tuple(one for one in self.interfaces if one.up and one.mbps >= FAST_MBPS)


def read_link(
    environment: Mapping[str, str], devices: Mapping[str, str], *, host: str, nccl: str = ""
) -> LinkFacts:
    """Return the facts of one end; *devices* are the files that `list_devices` reads there."""
    names = [match[1] for path in devices if (match := _INTERFACE.fullmatch(path)) and match[1] != "lo"]
    speeds = {name: devices.get(f"class/net/{name}/speed", "") for name in names}
    return LinkFacts(
        host=host,
        interfaces=tuple(
            Interface(
                name=name,
                mbps=int(speed) if speed.lstrip("-").isdecimal() else -1,
                up=devices[f"class/net/{name}/operstate"] == "up",
                physical=f"class/net/{name}/device" in devices,
            )
            for name, speed in sorted(speeds.items())
        ),
        # A state reads `4: ACTIVE`; of several ports of a device, an active one counts.
        rdma={
            match[1]: state.rpartition(":")[2].strip()
            for path, state in sorted(devices.items(), key=lambda one: (one[1].endswith(ACTIVE), one))
            if (match := _PORT.fullmatch(path))
        },
        variables={name: environment[name] for name in _VARIABLES if environment.get(name)},
        nccl=nccl,
    )


def check_link(ends: tuple[LinkFacts, ...]) -> Iterator[Finding]:
    """Yield findings about each end: this one, and the other if its facts are known."""
    for end in ends:
        if end.fast:
            for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
                yield from _chosen(end, name)
        else:
            shown = ", ".join(
                f"{one.name} {'up' if one.up else 'down'} {one.mbps if one.mbps >= 0 else '?'} Mb/s"
                for one in end.interfaces
                if one.physical
            )
            fast = FAST_MBPS // 1000
            yield finding("link", host=end.host, fast=fast, interfaces=shown or "it has none")
        yield from _devices(end)
        if end.nccl == _HANGS:
            yield finding("nccl", version=end.nccl, host=end.host)
    if len(ends) == 1:
        yield finding("peer")


def _chosen(end: LinkFacts, name: str) -> Iterator[Finding]:
    """Yield a finding where *name* selects no fast interface, or is not set and a slow one may be taken."""
    fast = [one.name for one in end.fast]
    value = end.variables.get(name, "")
    up = [one.name for one in end.interfaces if one.up]
    taken = [one for one in up if selects(value, one, exact=name.startswith("GLOO"))]
    slow = [one.name for one in end.interfaces if one.up and one.physical and one.name not in fast]
    if slow and not value:
        facts = {"name": name, "slow": ", ".join(slow), "fast": ", ".join(sorted(fast)), "first": fast[0]}
        yield finding("link-interface/unset", host=end.host, **facts)
    if not value or {*fast} & {*taken}:
        return
    names = {"up": ", ".join(up), "slow": ", ".join(taken), "fast": ", ".join(sorted(fast))}
    row = "link-interface" if taken else "link-interface/none"
    yield finding(row, host=end.host, name=name, value=value, first=fast[0], **names)


def selects(value: str, name: str, *, exact: bool = False) -> bool:
    """Tell if the interface *name* is selected by *value*.

    Args:
        value: prefixes between commas, after ``^`` those left out, after ``=`` whole names (NCCL's syntax).
        name: of the interface.
        exact: true for Gloo, whose variable lists whole names.
    """
    excluded = value.startswith("^")
    value = value.removeprefix("^")
    exact = exact or value.startswith("=")
    listed = [one.strip() for one in value.removeprefix("=").split(",") if one.strip()]
    found = any(
        name == one.partition(":")[0] if exact else name.startswith(one.partition(":")[0]) for one in listed
    )
    return found != excluded


def _devices(end: LinkFacts) -> Iterator[Finding]:
    """Yield findings about RDMA, without which NCCL copies through the kernel's sockets."""
    active = [device for device, state in end.rdma.items() if state == ACTIVE]
    variables = end.variables
    if variables.get("NCCL_IB_DISABLE") == "1" or variables.get("NCCL_NET", "").lower() == "socket":
        names = [name for name in ("NCCL_IB_DISABLE", "NCCL_NET") if name in variables]
        shown = ", ".join(f"{name}={variables[name]}" for name in names)
        yield finding("rdma/off", host=end.host, variables=shown)
    elif end.fast and not active:
        shown = ", ".join(f"{device} {state or 'unknown'}" for device, state in end.rdma.items())
        yield finding("rdma", host=end.host, devices=shown or "/sys/class/infiniband has none")
    value = variables.get("NCCL_IB_HCA", "")
    if value and active and not any(selects(value, one) for one in active):
        devices = ", ".join(active)
        yield finding("rdma-device", host=end.host, value=value, devices=devices, first=active[0])
