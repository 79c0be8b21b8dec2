"""Signatures: DSSE envelopes over statements, by a local ed25519 key, by sigstore, or by nothing.

An envelope is one JSON file with the payload in it, so that a signature and what it signs are replaced
together (https://github.com/secure-systems-lab/dsse). One that sigstore signed has its bundle beside the
(empty) list of signatures.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparkwright.base.digests import to_json
from sparkwright.base.errors import SignatureError, ToolError, UntrustedKeyError
from sparkwright.publish.root import TrustedIdentity, TrustRoot

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner
    from sigstore.models import Bundle


CHANNEL_TYPE = "application/vnd.sparkwright.channel+json"
TRUST_TYPE = "application/vnd.sparkwright.trust+json"
STATEMENT_TYPE = "application/vnd.in-toto+json"
_BUNDLE = "sigstoreBundle"


class PayloadSigner(Protocol):
    """A way to sign payloads; `name` is the key's id, or states that there is none."""

    @property
    def name(self) -> str:
        """Name of the signer, for people."""

    def sign(self, payload: bytes, payload_type: str) -> bytes:
        """Return an envelope with *payload* and its signature.

        Raises:
            SignatureError: it cannot be signed.
        """


@dataclass(frozen=True)
class LocalSigner:
    """Signs by an ed25519 key of this machine.

    Attributes:
        key: the key; its private part never leaves this object.
    """

    key: CryptoSigner

    @property
    def name(self) -> str:
        """The key's id."""
        return str(self.key.public_key.keyid)

    def sign(self, payload: bytes, payload_type: str) -> bytes:
        """See `PayloadSigner.sign`."""
        return sign_by([self.key], payload, payload_type)


@dataclass(frozen=True)
class NoSigner:
    """Signs nothing: readers have to be told to accept that."""

    @property
    def name(self) -> str:
        """States that there is no key."""
        return "UNSIGNED"

    def sign(self, payload: bytes, payload_type: str) -> bytes:
        """Return an envelope without a signature."""
        return sign_by([], payload, payload_type)


@dataclass(frozen=True)
class SigstoreSigner:
    """Signs by the identity of a CI job, without a key of its own.

    Attributes:
        token: the job's identity token, an OIDC token for sigstore; it is in no message.
    """

    token: str

    @property
    def name(self) -> str:
        """The kind of signature."""
        return "sigstore"

    def sign(self, payload: bytes, payload_type: str) -> bytes:
        """See `PayloadSigner.sign`."""
        from sigstore.errors import Error
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken
        from sigstore.sign import SigningContext

        try:
            token = IdentityToken(self.token)
            context = SigningContext.from_trust_config(ClientTrustConfig.production())
            with context.signer(token) as signer:
                bundle = signer.sign_artifact(_pae(payload, payload_type)).to_json()
        except (Error, OSError) as error:
            raise SignatureError(
                "the statement cannot be signed by sigstore",
                because=_first_line(error),
                next_step="run it again in a CI job with 'id-token: write', or give --sign local",
            ) from error
        return to_json({**json.loads(sign_by([], payload, payload_type)), _BUNDLE: json.loads(bundle)})


def sigstore_signer() -> SigstoreSigner:
    """Return a signer by the identity token of this CI job.

    Raises:
        ToolError: the extra ``sigstore`` is not installed.
        SignatureError: this is no job with an identity token.
    """
    try:
        from sigstore.oidc import IdentityError, detect_credential
    except ImportError as error:
        raise ToolError(
            "nothing can be signed by sigstore",
            because="it is not installed",
            next_step="pip install 'sparkwright[sigstore]', or give --sign local",
        ) from error
    reason = "no identity token is offered here"
    token = None
    try:
        token = detect_credential()
    except IdentityError as error:
        reason = _first_line(error)
    if not token:
        raise SignatureError(
            "nothing can be signed by sigstore",
            because=reason,
            next_step="run it in a CI job with 'id-token: write', or give --sign local",
        )
    return SigstoreSigner(token)


def sign_by(keys: list[CryptoSigner], payload: bytes, payload_type: str) -> bytes:
    """Return an envelope with *payload*, signed by all *keys*."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(payload, payload_type, {})
    for key in keys:
        envelope.sign(key)
    return to_json(envelope.to_dict())


@dataclass(frozen=True)
class OpenedEnvelope:
    """An envelope that was read, whose signatures are not verified yet.

    Attributes:
        what: where it is from, for errors.
        envelope: payload and signatures.
        bundle: sigstore's, as JSON; empty if there is none.
    """

    what: str
    envelope: Envelope
    bundle: str = ""

    @property
    def payload(self) -> bytes:
        """The signed bytes."""
        return bytes(self.envelope.payload)

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the keys that it claims to be signed by."""
        return tuple(self.envelope.signatures)

    @property
    def is_signed(self) -> bool:
        """Tell if it has any signature, right or wrong."""
        return bool(self.key_ids or self.bundle)


def open_envelope(data: bytes, payload_type: str, what: str) -> OpenedEnvelope:
    """Return the envelope that *data* spells.

    Args:
        data: the file.
        payload_type: the type that its payload has to have: a statement of one kind is none of another.
        what: where it is from, for errors.

    Raises:
        SignatureError: it is truncated, is no envelope, or its payload has another type.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import FormatError

    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SignatureError(
            f"{what} is damaged",
            because=f"it is no whole JSON document, {len(data)} bytes: it was cut off, or never was one",
            next_step="fetch it again; if it stays so, take another mirror",
        ) from error
    try:
        bundle = value.pop(_BUNDLE, None)
        envelope = Envelope.from_dict(value)
    except (AttributeError, KeyError, TypeError, ValueError, FormatError) as error:
        raise SignatureError(
            f"{what} is damaged", because=f"it is no DSSE envelope ({type(error).__name__})"
        ) from error
    if envelope.payload_type != payload_type:
        raise SignatureError(
            f"{what} is another kind of statement",
            because=f"its payload is {str(envelope.payload_type)[:80]!r}, not {payload_type!r}",
        )
    return OpenedEnvelope(what, envelope, "" if bundle is None else json.dumps(bundle))


def verify_envelope(opened: OpenedEnvelope, root: TrustRoot, *, written: str = "", role: str) -> str:
    """Return the name of the signer of *opened*, once a signature by a trusted one was verified.

    Args:
        opened: the envelope.
        root: the trusted keys and identities.
        written: the time that the payload states; the key has to have been in use then.
        role: what the key has to be allowed to sign.

    Raises:
        SignatureError: it has no signature, or a wrong one.
        UntrustedKeyError: its signers are unknown, revoked, out of their time, or may not sign this.
    """
    if opened.bundle:
        if role != "channels":
            raise UntrustedKeyError(
                f"{opened.what} is signed by sigstore",
                because=f"identities may sign channels, not {role}: a key has to sign those",
                next_step="take another mirror; who can run the publisher's CI may have made it",
            )
        return _verify_bundle(opened, root)
    if not opened.key_ids:
        raise SignatureError(
            f"{opened.what} is not signed",
            because="it was published with --sign none: anybody who can write there can have made it",
            next_step="ask its publisher to sign it, or accept that with --allow-unsigned",
        )
    known = [key_id for key_id in opened.key_ids if root.find(key_id)]
    if not known:
        raise UntrustedKeyError(
            f"{opened.what} is signed by an unknown key",
            because=f"{', '.join(key_id[:16] for key_id in opened.key_ids)} is not in the pinned root",
            next_step="if the publisher confirms it, pin their root: sparkwright channel key pin FILE",
        )
    refusals = [root.refusal(key_id, written, role) for key_id in known]
    usable = [key_id for key_id, refusal in zip(known, refusals, strict=True) if not refusal]
    if not usable:
        raise UntrustedKeyError(
            f"{opened.what} is signed by a key that is not trusted for it",
            because=refusals[0],
            next_step="take another mirror; if this is the newest, ask its publisher to sign it again",
        )
    for key_id in usable:
        if _is_valid(opened.envelope, key_id, root):
            return key_id
    raise SignatureError(
        f"{opened.what} has a wrong signature",
        because=f"it does not belong to the payload and the key {usable[0][:16]}: one of them was changed",
        next_step="do not install from there; take another mirror",
    )


def _is_valid(envelope: Envelope, key_id: str, root: TrustRoot) -> bool:
    from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError

    key = root.public_key(key_id)
    with contextlib.suppress(UnverifiedSignatureError, VerificationError, ValueError):
        key.verify_signature(envelope.signatures[key_id], envelope.pae())
        return True
    return False


def identity_of(opened: OpenedEnvelope, root: TrustRoot) -> TrustedIdentity | None:
    """Return the identity of *root* that sigstore's bundle names, unverified; `None` if it names none of it.

    Raises:
        ToolError: sigstore is not installed.
        SignatureError: the bundle is damaged.
    """
    return _claimed(opened, root)[0] if root.identities else None


def _claimed(opened: OpenedEnvelope, root: TrustRoot) -> tuple[TrustedIdentity | None, Bundle]:
    """Return the same as `identity_of` with the bundle.

    Raises:
        ToolError: sigstore is not installed.
        SignatureError: the bundle is damaged.
    """
    try:
        from sigstore.errors import Error, VerificationError
        from sigstore.models import Bundle
        from sigstore.verify.policy import Identity
    except ImportError as error:
        raise ToolError(
            f"{opened.what} cannot be verified",
            because="sigstore signed it, which is not installed",
            next_step="pip install 'sparkwright[sigstore]'",
        ) from error
    try:
        bundle = Bundle.from_json(opened.bundle)
    except (Error, ValueError) as error:
        raise SignatureError(
            f"{opened.what} is damaged", because=f"its sigstore bundle cannot be read: {_first_line(error)}"
        ) from error
    for one in root.identities:
        with contextlib.suppress(VerificationError):
            Identity(identity=one.identity, issuer=one.issuer).verify(bundle.signing_certificate)
            return one, bundle
    return None, bundle


def _verify_bundle(opened: OpenedEnvelope, root: TrustRoot) -> str:
    """Verify sigstore's bundle by the trusted root that the library ships, without a network.

    Raises:
        ToolError: sigstore is not installed.
        SignatureError: the bundle is damaged, or of something else.
        UntrustedKeyError: no trusted identity made it.
    """
    if not root.identities:
        raise UntrustedKeyError(
            f"{opened.what} is signed by an unknown identity",
            because="sigstore signed it, and the pinned root has no identity",
            next_step="pin a root that names the publisher's identity and its issuer",
        )
    identity, bundle = _claimed(opened, root)
    if identity is None:
        raise UntrustedKeyError(
            f"{opened.what} is signed by an unknown identity",
            because=f"the pinned root trusts {', '.join(one.identity for one in root.identities)}",
            next_step="take another mirror; if the publisher confirms the identity, pin their root",
        )
    from sigstore.errors import VerificationError
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity

    # Without a handler, Python prints the library's warnings.
    logging.getLogger("sigstore").addHandler(logging.NullHandler())
    try:
        Verifier.production(offline=True).verify_artifact(
            _pae(opened.payload, opened.envelope.payload_type),
            bundle,
            Identity(identity=identity.identity, issuer=identity.issuer),
        )
    except VerificationError as error:
        raise SignatureError(
            f"{opened.what} has a wrong signature",
            because=f"sigstore's bundle: {_first_line(error)}",
            next_step="do not install from there; take another mirror",
        ) from error
    return f"sigstore {identity.identity}"


def _pae(payload: bytes, payload_type: str) -> bytes:
    """Return the bytes that signatures of an envelope are over."""
    from securesystemslib.dsse import Envelope

    return bytes(Envelope(payload, payload_type, {}).pae())


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
