"""Attestations (PEP 740) of a channel's wheels: published, linked by address, verified by digest."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import wheelkit
from channel_kit import POLICY, ChannelWorld, now
from test_channel_clients import SETTINGS, served
from test_channel_targets import NEW, installed

from sparkwright.base.errors import PublishError, TamperedError
from sparkwright.publish.attestations import SUFFIX, read_attestations
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.evidence import require_evidence
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.mirror import HttpMirror
from sparkwright.publish.promote import ChannelPublisher


def provenance_object(sha256: str) -> bytes:
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": [{"digest": {"sha256": sha256}}]}
    envelope = {"statement": base64.b64encode(json.dumps(statement).encode()).decode(), "signature": "AA=="}
    attestation = {"version": 1, "verification_material": {"certificate": "AA=="}, "envelope": envelope}
    bundle = {"publisher": {"kind": "GitHub"}, "attestations": [attestation]}
    return json.dumps({"version": 1, "attestation_bundles": [bundle]}).encode()


@dataclass(frozen=True)
class ServedTarget(FolderTarget):
    """A folder that is served at an address."""

    address: str = ""

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"


def promote(world: ChannelWorld, publisher: ChannelPublisher, wheel: Path) -> ChannelState:
    sha256 = wheelkit.sha256(wheel)
    found = require_evidence(wheel, sha256, "stable", POLICY, world.dist / "evidence")
    attestations = read_attestations(wheel, sha256)
    return publisher.promote("stable", wheel, found, POLICY, now(), attestations=attestations)


def attested(world: ChannelWorld) -> Path:
    wheel = world.wheel(NEW)
    wheel.with_name(wheel.name + SUFFIX).write_bytes(provenance_object(wheelkit.sha256(wheel)))
    return wheel


def test_pages_link_to_attestations_and_clients_install(tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path)
    wheel = attested(world)
    world.published.mkdir()
    with served(world.published) as (address, _):
        publisher = world.publisher(ServedTarget(world.published, address))
        state = promote(world, publisher, wheel)
        index = f"{address}/channels/stable/simple"
        (file,) = requests.get(f"{index}/vllm/index.json", timeout=30).json()["files"]
        assert (
            requests.get(file["provenance"], timeout=30).content
            == wheel.with_name(wheel.name + SUFFIX).read_bytes()
        )
        assert f'data-provenance="{file["provenance"]}"' in requests.get(f"{index}/vllm/", timeout=30).text
        assert [installed(client, index, tmp_path / client) for client in ("pip", "uv")] == [NEW, NEW]
        renewed = publisher.renew("stable", POLICY, now())
        assert renewed.files[0].attestations == state.files[0].attestations
        mirror = HttpMirror(address, SETTINGS)
        world.verify("stable", mirror=mirror)
        (stored,) = world.published.rglob("attestations/*.json")
        stored.write_bytes(stored.read_bytes() + b"\n")
        with pytest.raises(TamperedError, match="attestations"):
            world.verify("stable", mirror=mirror)


def test_attestations_of_other_bytes_or_of_another_form_are_refused(tmp_path: Path) -> None:
    wheel = attested(ChannelWorld(tmp_path))
    sha256, beside = wheelkit.sha256(wheel), wheel.with_name(wheel.name + SUFFIX)
    assert read_attestations(wheel, sha256) == beside.read_bytes()
    for data in (
        provenance_object("0" * 64),
        b"{",
        b'{"version": 2}',
        b'{"version":1,"attestation_bundles":[]}',
    ):
        beside.write_bytes(data)
        with pytest.raises(PublishError, match="cannot be published with"):
            read_attestations(wheel, sha256)
    beside.unlink()
    assert read_attestations(wheel, sha256) == b""


def test_a_folder_without_an_address_has_no_link(tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path)
    state = promote(world, world.publisher(), attested(world))
    assert state.files[0].on_page().provenance == ""
    assert not list(world.published.rglob("attestations"))
    world.verify("stable")
