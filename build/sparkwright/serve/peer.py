"""The second of two machines that serve together: reached by ssh, compared with this one, and linked to it.

Nothing is installed there. ``child/peer.py`` goes as an argument of ssh's command and reports, receives files
and runs the worker; each of its processes ends with the connection. What is between both machines, ssh too,
goes over the fastest link that they share.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_interface
from itertools import product
from pathlib import Path

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ClusterError, ConfigError, ProcessError
from sparkwright.base.events import emit, task, warn
from sparkwright.base.process.run import run
from sparkwright.base.ssh import SshHost, parse_host
from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.finding import warn_or_refuse
from sparkwright.serve.preflight.link import ACTIVE, LinkFacts, check_link, read_link
from sparkwright.serve.settings import as_head

CHILD = Path(__file__).with_name("child") / "peer.py"
_SCRIPT = 'command -v python3 >/dev/null || exit 127; exec python3 -c "$@"'
_NOT_FOUND, _OF_SSH = 127, 255
_ASK_S = 120.0
_TRIED = 4
_LOCKED = 1 << 30  # for the buffers that NCCL registers with RDMA devices
_USUAL_SHARE = 0.92
_SAID = 500


class MachineFacts(msgspec.Struct, frozen=True):
    """A machine, as ``child/peer.py`` reports it.

    Attributes:
        python: version of the interpreter that the server's environment is of; empty where it is not there.
        headers: Python's headers are there, which Triton compiles with.
        capability: of the first card, such as ``12.1``; empty without one.
        shared: the card has no memory of its own.
        memlock: bytes of memory that a process may lock; -1 for all.
        home: folder for copies.
        hub: folder of huggingface_hub's cache.
        addresses: interfaces and their addresses with the length of the prefix.
        devices: files below ``/sys`` and their texts.
    """

    machine: str
    libc: str
    python: str
    compiler: bool
    headers: bool
    capability: str
    driver: str
    shared: bool
    total_kib: int
    available_kib: int
    memlock: int
    home: str
    hub: str
    addresses: tuple[tuple[str, str], ...]
    devices: dict[str, str]

    def link(self, host: str, variables: Mapping[str, str]) -> LinkFacts:
        """Return its end of a link; *variables* are those of its server."""
        return read_link(variables, self.devices, host=host)

    def rdma_of(self, interface: str) -> list[str]:
        """Return the RDMA devices of the *interface*."""
        start = f"class/net/{interface}/device/infiniband/"
        return sorted(name.removeprefix(start) for name in self.devices if name.startswith(start))


@dataclass(frozen=True)
class End:
    """One end of the link that two machines share.

    Attributes:
        devices: RDMA devices by which NCCL reaches the other end.
    """

    interface: str
    address: str
    devices: tuple[str, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which NCCL, Gloo and vLLM take this link."""
        devices = {"NCCL_IB_HCA": f"={','.join(self.devices)}"} if self.devices else {}
        return {
            "NCCL_SOCKET_IFNAME": f"={self.interface}",
            "GLOO_SOCKET_IFNAME": self.interface,
            "VLLM_HOST_IP": self.address,
            **devices,
        }


@dataclass(frozen=True)
class Peer:
    """The second machine.

    Attributes:
        facts: of the second machine.
        here: this machine's end of the link.
        there: the other end.
        mbps: speed of the link; -1 where no driver tells.
        python: the interpreter that environments are made of, on both machines.
        options: options of ssh for a connection over the link.
    """

    host: SshHost
    facts: MachineFacts
    here: End
    there: End
    mbps: int
    python: Path
    options: tuple[str, ...]

    def argv(self, *words: str) -> tuple[str, ...]:
        """Return the command that runs ``child/peer.py`` there with *words*, over the link."""
        return self.host.argv(_SCRIPT, CHILD.read_text(encoding="utf-8"), *words, forwards=self.options)

    @property
    def speed(self) -> str:
        """The speed of the link in words."""
        return f"{self.mbps / 1000:g} Gb/s" if self.mbps > 0 else "unknown speed"

    def head(self, recipe: Recipe) -> Recipe:
        """Return *recipe* for this machine, which answers; variables of this shell are left as they are."""
        recipe = as_head(recipe, self.here.address)
        new = {name: value for name, value in self.here.variables.items() if name not in os.environ}
        why = dict.fromkeys(new, f"the link to {self.host.shown}: {self.here.interface}, {self.speed}")
        return msgspec.structs.replace(
            recipe, environment={**new, **recipe.environment}, why={**why, **recipe.why}
        )

    def worker(self, recipe: Recipe) -> Recipe:
        """Return the *recipe* of the head for the other machine."""
        return msgspec.structs.replace(recipe, flags={**recipe.flags, "node-rank": 1, "headless": True})


def find_peer(text: str, recipe: Recipe, python: Path, *, force: bool = False) -> Peer:
    """Return the machine that ssh names *text*, once it was found fit to serve *recipe* with this one.

    *force* serves in spite of a link that is predicted to fail.

    Raises:
        ConfigError: *text* names no machine, or the recipe is for a single one.
        ClusterError: the machine cannot be reached, cannot do what this one can, or shares no link with it.
        PreflightError: NCCL would take another way than the link.
    """
    try:
        host = parse_host(text)
    except ValueError as error:
        raise ConfigError(
            f"--peer {text.rpartition('@')[2]} is no machine",
            because=str(error),
            next_step="give --peer [USER@]HOST[:PORT]",
        ) from error
    as_head(recipe, host.host)  # refuses one for a single machine
    request = json.dumps({"python": str(python.resolve())})
    with task(f"look at {host.shown}"):
        own = decode_json(run([sys.executable, "-I", CHILD, "facts", request]).stdout, MachineFacts)
        other = _ask(host, request)
        _compare(own, other, host.shown, recipe, python.resolve())
        peer = _linked(host, own, other, python.resolve())
    emit(
        "serve.peer", host=host.shown, interface=peer.here.interface, there=peer.there.interface,
        speed=peer.speed, devices=peer.here.devices,
    )  # fmt: skip
    for name, facts in (("this machine", own), (host.shown, other)):
        if peer.here.devices and 0 <= facts.memlock < _LOCKED:
            warn(
                f"a process of {name} may lock {facts.memlock >> 20} MiB of memory, and RDMA locks more",
                next_step="there, put `* - memlock unlimited` into /etc/security/limits.conf, log in again",
            )
    ends = (
        own.link(platform.node(), {**os.environ, **peer.head(recipe).environment}),
        other.link(host.shown, peer.there.variables),
    )
    # A slow link is slow, and works.
    found = [replace(one, level="warn") if one.check == "link" else one for one in check_link(ends)]
    warn_or_refuse(found, force=force)
    return peer


def refusal(host: SshHost, status: int, said: str) -> ClusterError:
    """Return why a connection of ssh ended with *status*."""
    name = host.shown
    because = said.strip()[-_SAID:] or f"it ended with status {status}"
    if status == _OF_SSH:
        port, user = (f"-p {host.port} " if host.port else ""), (f"{host.user}@" if host.user else "")
        words = f"{port}{user}{host.host}"
        return ClusterError(
            f"{name} cannot be reached",
            because=because,
            next_step=f"let `ssh {words} true` work without a question, by ssh-copy-id {words}",
        )
    if status == _NOT_FOUND:
        return ClusterError(f"{name} has no python3", because=because, next_step="install python3 there")
    return ClusterError(
        f"{name} cannot be used", because=because, next_step="see what its shell prints at a login"
    )


def _ask(host: SshHost, request: str) -> MachineFacts:
    argv = host.argv(_SCRIPT, CHILD.read_text(encoding="utf-8"), "facts", request)
    try:
        done = run(argv, timeout=_ASK_S, accept=range(256))
    except ProcessError as error:
        raise refusal(host, 1, error.because) from error
    told = [line for line in done.stdout.splitlines() if line.startswith(b"{")]  # a login may print more
    if done.status or not told:
        raise refusal(host, done.status, done.stderr or done.text)
    return decode_json(told[-1], MachineFacts)


# Comparison -------------------------------------------------------------------------------------------------


def _compare(own: MachineFacts, other: MachineFacts, host: str, recipe: Recipe, python: Path) -> None:
    """Refuse a machine that cannot run what this one runs.

    Raises:
        ClusterError: it cannot.
    """
    for what, because, next_step in _differences(own, other, recipe, python):
        raise ClusterError(f"{host} {what}", because=because, next_step=next_step)
    if own.driver != other.driver:
        warn(f"{host} has driver {other.driver or 'none'}, and this machine {own.driver or 'none'}")


def _differences(
    own: MachineFacts, other: MachineFacts, recipe: Recipe, python: Path
) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with the *other* machine, each with the reason and the next step."""
    alike = "serve on two machines of one kind"
    if own.machine != other.machine:
        yield "has another architecture", f"it is {other.machine}, and this one {own.machine}", alike
    if _numbers(other.libc) < _numbers(own.libc):
        yield (
            "has an older glibc",
            f"it has {other.libc}, and what is installed here is for {own.libc}",
            "bring both machines to the same release of the system",
        )
    if own.capability != other.capability:
        cards = [f"capability {one}" if one else "none that nvidia-smi shows" for one in
                 (other.capability, own.capability)]  # fmt: skip
        yield "has another card", f"it has {cards[0]}, and this machine {cards[1]}", alike
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not other.python and python.is_relative_to("/usr"):
        yield f"has no {python}", "the environment is of it", f"install it there: apt install python{version}"
    if other.python and other.python != own.python:
        yield f"has another {python}", f"it is {other.python}, and here {own.python}", alike
    for name, has, here, package in (
        ("C compiler", other.compiler, own.compiler, "gcc"),
        ("Python headers", other.headers or not other.python, own.headers, f"python{version}-dev"),
    ):
        if here and not has:
            yield (
                f"has no {name}",
                "Triton compiles with it when the worker starts",
                f"install it there: apt install {package}",
            )
    share = float(recipe.flags.get("gpu-memory-utilization", _USUAL_SHARE))
    free, needed = other.available_kib / (1 << 20), share * other.total_kib / (1 << 20)
    if other.shared and free < needed:
        yield (
            "has too little memory left",
            f"{free:.1f} GiB are available there, and the recipe takes {needed:.1f}",
            "end what holds it there, such as another server",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


# The link ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """Two ends with addresses of one network; *mbps* is -1 where no driver tells the speed."""

    mbps: int
    here: End
    there: End


def _linked(host: SshHost, own: MachineFacts, other: MachineFacts, python: Path) -> Peer:
    """Return the peer with the fastest link over which ssh reaches it.

    Raises:
        ClusterError: there is none.
    """
    links = links_between(own, other)
    for link in links[:_TRIED]:
        options = _over(host, link)
        if run(host.argv("exit 0", forwards=options), timeout=_ASK_S, accept=range(256)).status == 0:
            # NCCL uses both halves of a ConnectX port, each with an interface and a device of its own.
            equal = [one for one in links if one.mbps == link.mbps]
            here = _with_devices(link.here, [one.here for one in equal])
            there = _with_devices(link.there, [one.there for one in equal])
            return Peer(host, other, here, there, link.mbps, python, options)
    what = f"this machine and {host.shown} share no link"
    if links:
        tried = "; ".join(f"{one.here.address} to {one.there.address}" for one in links[:_TRIED])
        raise ClusterError(
            what,
            because=f"ssh does not get through from {tried}",
            next_step="let sshd listen at these addresses, and firewalls let it through",
        )
    addresses = " and ".join(
        f"{name} has {', '.join(' '.join(one) for one in facts.addresses) or 'none'}"
        for name, facts in (("this machine", own), (host.shown, other))
    )
    raise ClusterError(
        what,
        because=f"no two of their addresses are of one network: {addresses}",
        next_step="connect the QSFP ports, and give both interfaces addresses of one network (netplan)",
    )


def _with_devices(end: End, ends: list[End]) -> End:
    """Return *end* with the devices of all *ends*."""
    return replace(end, devices=tuple(dict.fromkeys(name for one in ends for name in one.devices)))


def links_between(own: MachineFacts, other: MachineFacts) -> list[Link]:
    """Return the links that both machines may have, the fastest first."""
    found = [
        Link(min(near_mbps, far_mbps), near, far)
        for (near_mbps, network, near), (far_mbps, its, far) in product(_ends(own), _ends(other))
        if network == its and near.address != far.address
    ]
    return sorted(found, key=lambda one: -one.mbps)


def _ends(facts: MachineFacts) -> list[tuple[int, str, End]]:
    """Return the interfaces that are up, one for each address, with their speeds and networks."""
    link = facts.link("", {})
    speeds = {one.name: one.mbps for one in link.interfaces if one.up}
    active = {device for device, state in link.rdma.items() if state == ACTIVE}
    found = []
    for name, text in facts.addresses:
        address = ip_interface(text)
        # Every interface has a link-local address of IPv6, which leads nowhere without its name.
        if name in speeds and not (address.version > 4 and address.ip.is_link_local):  # noqa: PLR2004
            devices = tuple(one for one in facts.rdma_of(name) if one in active)
            found.append((speeds[name], str(address.network), End(name, str(address.ip), devices)))
    return found


def _over(host: SshHost, link: Link) -> tuple[str, ...]:
    """Return the options by which ssh connects over *link*, and to *host* alone, by its key."""
    told = run(["ssh", "-G", *host.argv("")[1:]], accept=range(256)).text.splitlines()
    settings = dict(line.partition(" ")[::2] for line in told)
    name, port = settings.get("hostname", host.host), settings.get("port", "22")
    alias = settings.get("hostkeyalias") or (name if port == "22" else f"[{name}]:{port}")
    return (
        "-oClearAllForwardings=yes", f"-oHostName={link.there.address}",
        f"-oBindAddress={link.here.address}", f"-oHostKeyAlias={alias}",
        "-oProxyJump=none", "-oControlPath=none", "-oCiphers=^aes128-gcm@openssh.com",
    )  # fmt: skip
