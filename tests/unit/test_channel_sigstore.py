"""Keyless signatures where sigstore cannot be reached: what is refused, and what readers make of bundles."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from channel_kit import POLICY, ChannelWorld, now
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Key, Signature

from sparkwright.base.errors import SignatureError, ToolError, UntrustedKeyError
from sparkwright.publish.identities import IdentityKey, IdentitySigner, identity_key, identity_signer
from sparkwright.publish.keys import ChannelKeys, allow_identity, load_publisher
from sparkwright.publish.roots import ChannelRoot

IDENTITY, ISSUER = "https://example.org/w@refs/heads/main", "https://issuer.example.org"
BUNDLE = {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "verificationMaterial": {}}
KEY = identity_key(IDENTITY, ISSUER)


def signature(bundle: object) -> Signature:
    return Signature(KEY.keyid, "", {"bundle": bundle})


@pytest.mark.parametrize("bundle", [BUNDLE, {}, [], "x", 3, None, {**BUNDLE, "mediaType": "y"}])
def test_a_damaged_bundle_is_refused(bundle: object) -> None:
    with pytest.raises(UnverifiedSignatureError, match="sigstore's bundle"):
        KEY.verify_signature(signature(bundle), b"{}")


def test_an_identity_in_a_root_is_verified_offline(tmp_path: Path) -> None:
    """securesystemslib's own class asks sigstore's server."""
    root = allow_identity(tmp_path / "nightly", IDENTITY, ISSUER).root
    again = ChannelRoot(root.data).keys("timestamp")[KEY.keyid]
    assert type(again) is IdentityKey
    assert (again.keyval["identity"], again.keyval["issuer"]) == (IDENTITY, ISSUER)
    assert KEY.keyid not in root.keys("root")


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sigstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sigstore", None)
    for use in (lambda: identity_signer([KEY]), lambda: KEY.verify_signature(signature(BUNDLE), b"")):
        with pytest.raises(ToolError) as caught:
            use()
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
        identity_signer([KEY])
    monkeypatch.setenv("GITHUB_ACTIONS", "true")  # a job without the permission
    with pytest.raises(SignatureError) as caught:
        identity_signer([KEY])
    assert "id-token: write" in caught.value.next_step


def test_a_root_without_an_identity_takes_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    import sigstore.oidc

    monkeypatch.setattr(sigstore.oidc, "detect_credential", lambda: "token")
    with pytest.raises(UntrustedKeyError, match="has no identity"):
        identity_signer([])


def test_a_token_is_in_no_message() -> None:
    signer = IdentitySigner("hunter2.hunter2.hunter2", (KEY,))
    assert "hunter2" not in repr(signer)
    with pytest.raises(SignatureError) as caught:
        signer.sign(b"{}")
    assert "hunter2" not in f"{caught.value} {caught.value.next_step}"


# A channel that a job signs -------------------------------------------------------------------------


class Job(IdentitySigner):
    """Signs as the stand-in for sigstore below does."""

    def sign(self, payload: bytes) -> Signature:
        bundle = {"name": self.token, "payload": payload.hex()}
        (key,) = (key for key in self.keys if key.keyval["identity"] == self.token)
        return Signature(key.keyid, "ab", {"bundle": bundle})


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bundle's ``name`` be the identity in its certificate, and its payload what was signed."""
    from sigstore import models, verify
    from sigstore.errors import VerificationError
    from sigstore.verify import policy

    class Identity:
        def __init__(self, *, identity: str, issuer: str) -> None:
            self.identity = identity
            assert issuer == ISSUER

    def verify_artifact(data: bytes, bundle: Any, policy: Identity) -> None:
        if bundle.name != policy.identity or bundle.payload != data.hex():
            raise VerificationError("forged")

    def production(*, offline: bool) -> SimpleNamespace:
        assert offline
        return SimpleNamespace(verify_artifact=verify_artifact)

    monkeypatch.setattr(models.Bundle, "from_json", lambda text: SimpleNamespace(**json.loads(text)))
    monkeypatch.setattr(policy, "Identity", Identity)
    monkeypatch.setattr(verify.Verifier, "production", production)


def by_job(world: ChannelWorld, name: str, keys: tuple[Key, ...]) -> ChannelKeys:
    own = load_publisher(world.home)
    return ChannelKeys(Job(name, keys), own.root, own.files)


@pytest.mark.usefixtures("by_name")
def test_of_two_identities_the_one_that_signed_is_named(tmp_path: Path) -> None:
    world, names = ChannelWorld(tmp_path), ("ci-a", "ci-b")
    for name in names:
        root = allow_identity(world.home, name, ISSUER).root
    identities = tuple(key for key in root.keys("timestamp").values() if isinstance(key, IdentityKey))
    world.promote("1")
    for name in names:
        job = replace(world.publisher(), keys=lambda _, name=name: by_job(world, name, identities))
        job.renew("nightly", POLICY, now())
        assert world.verify().signer == f"sigstore {name}"
    stranger = (identity_key("ci-c", ISSUER),)
    other = replace(world.publisher(), keys=lambda _: by_job(world, "ci-c", stranger))
    other.renew("nightly", POLICY, now())
    with pytest.raises(UntrustedKeyError, match="unknown key"):
        world.verify()


@pytest.mark.usefixtures("by_name")
def test_a_forged_bundle_is_a_wrong_signature(tmp_path: Path) -> None:
    world = ChannelWorld(tmp_path)
    root = allow_identity(world.home, "ci-a", ISSUER).root
    identities = tuple(key for key in root.keys("timestamp").values() if isinstance(key, IdentityKey))
    job = replace(world.publisher(), keys=lambda _: by_job(world, "ci-a", identities))
    world.promote("1", publisher=job)
    world.verify()
    pointer = world.published / "channels/nightly/timestamp.json"
    value = json.loads(pointer.read_bytes())
    value["signatures"][0]["bundle"]["payload"] = "00"
    pointer.write_text(json.dumps(value))
    with pytest.raises(SignatureError, match="wrong signature"):
        world.verify()
