"""Keyless signatures where sigstore cannot be reached: what is refused, and what readers make of bundles."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from channel_kit import ChannelWorld

from sparkwright.base.errors import SignatureError, ToolError, UntrustedKeyError
from sparkwright.publish.keys import allow_identity, load_publisher
from sparkwright.publish.signing import (
    CHANNEL_TYPE,
    NoSigner,
    SigstoreSigner,
    open_envelope,
    sigstore_signer,
    verify_envelope,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.publish.trust import TrustRoot

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
