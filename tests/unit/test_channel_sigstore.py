"""Keyless signatures where sigstore cannot be reached: what is refused, and what readers make of bundles."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from channel_kit import ChannelWorld, now, pinned

from sparkwright.base.errors import SignatureError, ToolError, UntrustedKeyError
from sparkwright.publish.keys import allow_identity, load_publisher, own_root_file
from sparkwright.publish.mirror import FolderMirror
from sparkwright.publish.root import TrustRoot
from sparkwright.publish.seen import SeenChannels
from sparkwright.publish.signing import (
    CHANNEL_TYPE,
    NoSigner,
    SigstoreSigner,
    open_envelope,
    sigstore_signer,
    verify_envelope,
)
from sparkwright.publish.verification import VerifyChannelOptions, verify_channel

BUNDLE = {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "verificationMaterial": {}}


@pytest.fixture
def root(tmp_path: Path) -> TrustRoot:
    """Return a root that trusts an identity."""
    world = ChannelWorld(tmp_path)
    return allow_identity(
        world.home, "https://example.org/w@refs/heads/main", "https://issuer.example.org"
    ).root


def bundled(bundle: object) -> bytes:
    envelope = json.loads(NoSigner().sign(b"{}", CHANNEL_TYPE))
    return json.dumps({**envelope, "sigstoreBundle": bundle}).encode()


@pytest.mark.parametrize("bundle", [BUNDLE, {}, [], "x", 3, {**BUNDLE, "mediaType": "y"}])
def test_a_damaged_bundle_is_refused(root: TrustRoot, bundle: object) -> None:
    opened = open_envelope(bundled(bundle), CHANNEL_TYPE, "it")
    assert opened.is_signed
    with pytest.raises(SignatureError, match="sigstore bundle cannot be read"):
        verify_envelope(opened, root, role="channels")


def test_a_bundle_counts_only_where_an_identity_is_trusted(tmp_path: Path) -> None:
    plain = load_publisher(tmp_path / "publisher").root
    with pytest.raises(UntrustedKeyError, match="the pinned root has no identity"):
        verify_envelope(open_envelope(bundled(BUNDLE), CHANNEL_TYPE, "it"), plain, role="channels")


def test_without_the_library_the_extra_is_named(root: TrustRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sigstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(ToolError) as caught:
        sigstore_signer()
    assert "sparkwright[sigstore]" in caught.value.next_step
    with pytest.raises(ToolError) as caught:
        verify_envelope(open_envelope(bundled(BUNDLE), CHANNEL_TYPE, "it"), root, role="channels")
    assert "sparkwright[sigstore]" in caught.value.next_step


def test_without_a_token_nothing_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
        "ACTIONS_ID_TOKEN_REQUEST_URL",
        "GITHUB_ACTIONS",
        "GITLAB_CI",
    ):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SignatureError, match="no identity token"):
        sigstore_signer()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")  # a job without the permission
    with pytest.raises(SignatureError) as caught:
        sigstore_signer()
    assert "id-token: write" in caught.value.next_step


def test_a_token_is_in_no_message() -> None:
    with pytest.raises(SignatureError) as caught:
        SigstoreSigner("hunter2.hunter2.hunter2").sign(b"{}", CHANNEL_TYPE)
    assert "hunter2" not in f"{caught.value} {caught.value.next_step}"


# Several identities, several publishers ------------------------------------------------------------

ISSUER = "https://issuer.example.org"


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bundle's ``name`` be the identity in its certificate, and its signature right unless "forged"."""
    from sigstore import models, verify
    from sigstore.errors import VerificationError
    from sigstore.verify import policy

    class Identity:
        def __init__(self, *, identity: str, issuer: str) -> None:
            self.identity = identity
            assert issuer == ISSUER

        def verify(self, certificate: str) -> None:
            if certificate != self.identity:
                raise VerificationError("another identity")

    def verify_artifact(_: bytes, bundle: Any, policy: Identity) -> None:
        policy.verify(bundle.signing_certificate)
        if bundle.forged:
            raise VerificationError("forged")

    def read(text: str) -> SimpleNamespace:
        value = json.loads(text)
        return SimpleNamespace(signing_certificate=value["name"], forged=value.get("forged", False))

    monkeypatch.setattr(models.Bundle, "from_json", read)
    monkeypatch.setattr(policy, "Identity", Identity)
    library = SimpleNamespace(verify_artifact=verify_artifact)
    monkeypatch.setattr(verify.Verifier, "production", lambda **_: library)


@pytest.mark.usefixtures("by_name")
def test_of_two_identities_the_one_that_signed_is_named(tmp_path: Path) -> None:
    for name in ("ci-a", "ci-b"):
        root = allow_identity(tmp_path / "publisher", name, ISSUER).root
    for name in ("ci-a", "ci-b"):
        opened = open_envelope(bundled({"name": name}), CHANNEL_TYPE, "it")
        assert verify_envelope(opened, root, role="channels") == f"sigstore {name}"
    with pytest.raises(UntrustedKeyError, match="unknown identity"):
        verify_envelope(open_envelope(bundled({"name": "ci-c"}), CHANNEL_TYPE, "it"), root, role="channels")
    forged = open_envelope(bundled({"name": "ci-b", "forged": True}), CHANNEL_TYPE, "it")
    with pytest.raises(SignatureError, match="wrong signature"):
        verify_envelope(forged, root, role="channels")


@pytest.mark.usefixtures("by_name")
def test_of_two_pinned_publishers_each_verifies_its_own_channel(tmp_path: Path) -> None:
    worlds = {name: ChannelWorld(tmp_path / name) for name in ("ci-a", "ci-b")}
    roots = []
    for name, world in worlds.items():
        allow_identity(world.home, name, ISSUER)
        world.promote("0.24.0+spark.9.ffffffff")
        pointer = world.published / "channels/nightly/channel.json"
        signed = json.loads(pointer.read_bytes())
        pointer.write_text(json.dumps({**signed, "signatures": [], "sigstoreBundle": {"name": name}}))
        roots.append(pinned(own_root_file(world.home)))
    for name, world in worlds.items():
        for order in (roots, roots[::-1]):
            verified = verify_channel(
                FolderMirror(world.published), "nightly", order,
                memory=SeenChannels(tmp_path / "seen.json"), now=now(),
                options=VerifyChannelOptions(wheels="none", patience_s=0.0),
            )  # fmt: skip
            assert verified.signer == f"sigstore {name}"
            assert verified.root is not None
            assert verified.root.publisher == load_publisher(world.home).root.publisher
