"""Keys that are identities: sigstore confirms that a CI job signed, and no private key exists."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import KEY_FOR_TYPE_AND_SCHEME, Key, Signature, Signer, SigstoreKey

from sparkwright.base.errors import SignatureError, ToolError, UntrustedKeyError

if TYPE_CHECKING:
    from securesystemslib.signer import SecretsHandler

_EXTRA = "pip install 'sparkwright[sigstore]'"
_JOB = "run it in a CI job with 'id-token: write', or give --sign local"
_ALLOW = "its owner adds it: sparkwright channel key allow NAME IDENTITY --issuer ADDRESS"


class IdentityKey(SigstoreKey):
    """An identity and its issuer, verified offline by the roots that the library ``sigstore`` ships.

    securesystemslib's own asks sigstore's server for newer roots at each verification.
    """

    def verify_signature(self, signature: Signature, data: bytes) -> None:
        """See `securesystemslib.signer.Key.verify_signature`.

        Raises:
            ToolError: sigstore is not installed.
            UnverifiedSignatureError: the bundle is damaged, of something else, or of another identity.
        """
        try:
            from sigstore.errors import Error, VerificationError
            from sigstore.models import Bundle
            from sigstore.verify import Verifier
            from sigstore.verify.policy import Identity
        except ImportError as error:
            raise ToolError(
                "the channel cannot be verified", because="sigstore signed it, which is not installed",
                next_step=_EXTRA,
            ) from error  # fmt: skip
        # Without a handler, Python prints the library's warnings.
        logging.getLogger("sigstore").addHandler(logging.NullHandler())
        identity = Identity(identity=self.keyval["identity"], issuer=self.keyval["issuer"])
        try:
            bundle = Bundle.from_json(json.dumps(signature.unrecognized_fields.get("bundle")))
            Verifier.production(offline=True).verify_artifact(data, bundle, identity)
        except (Error, VerificationError, ValueError) as error:
            raise UnverifiedSignatureError(f"sigstore's bundle: {_first_line(error)}") from error


KEY_FOR_TYPE_AND_SCHEME[SigstoreKey.DEFAULT_KEY_TYPE, SigstoreKey.DEFAULT_SCHEME] = IdentityKey


def identity_key(identity: str, issuer: str) -> IdentityKey:
    """Return *identity*, as *issuer* confirms it, as a key."""
    from securesystemslib.signer import SigstoreSigner

    made = SigstoreSigner.import_(identity, issuer)[1]
    return IdentityKey(made.keyid, made.keytype, made.scheme, made.keyval)


@dataclass(frozen=True)
class IdentitySigner(Signer):
    """Signs by the identity of a CI job, without a key of its own.

    Attributes:
        token: the job's identity token, an OIDC token for sigstore; it is in no message.
        keys: the identities that the root trusts, one of which is the job's.
    """

    token: str = field(repr=False)
    keys: tuple[Key, ...]

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: SecretsHandler | None = None
    ) -> IdentitySigner:
        """Refuse: there is no private key."""
        raise NotImplementedError

    @property
    def public_key(self) -> Key:
        """The first identity; which one signs is known by the certificate alone."""
        return self.keys[0]

    def sign(self, payload: bytes) -> Signature:
        """Return a signature of *payload* by the identity of the root that the job has.

        Raises:
            SignatureError: sigstore cannot be reached, or refuses.
            UntrustedKeyError: the root does not trust the job's identity.
        """
        from sigstore.errors import Error
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken
        from sigstore.sign import SigningContext

        try:
            context = SigningContext.from_trust_config(ClientTrustConfig.production())
            with context.signer(IdentityToken(self.token)) as signer:
                made = json.loads(signer.sign_artifact(payload).to_json())
        except (Error, OSError) as error:
            raise SignatureError(
                "the channel cannot be signed by sigstore", because=_first_line(error), next_step=_JOB
            ) from error
        for key in self.keys:
            signature = Signature(key.keyid, made["messageSignature"]["signature"], {"bundle": made})
            try:
                key.verify_signature(signature, payload)
            except UnverifiedSignatureError:
                continue
            return signature
        raise UntrustedKeyError(
            "the channel cannot be signed by sigstore",
            because="the root does not trust the identity of this job", next_step=_ALLOW,
        )  # fmt: skip


def identity_signer(keys: Iterable[Key]) -> IdentitySigner:
    """Return a signer by the identity token of this CI job, one of the identities among *keys*.

    Raises:
        ToolError: the extra ``sigstore`` is not installed.
        UntrustedKeyError: there is none among *keys*.
        SignatureError: this is no job with an identity token.
    """
    try:
        from sigstore.oidc import IdentityError, detect_credential
    except ImportError as error:
        raise ToolError(
            "nothing can be signed by sigstore", because="it is not installed",
            next_step=f"{_EXTRA}, or give --sign local",
        ) from error  # fmt: skip
    reason, token = "no identity token is offered here", None
    try:
        token = detect_credential()
    except IdentityError as error:
        reason = _first_line(error)
    if not token:
        raise SignatureError("nothing can be signed by sigstore", because=reason, next_step=_JOB)
    identities = tuple(key for key in keys if isinstance(key, SigstoreKey))
    if not identities:
        raise UntrustedKeyError(
            "nothing can be signed by sigstore", because="the root of the channel has no identity",
            next_step=_ALLOW,
        )  # fmt: skip
    return IdentitySigner(token, identities)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
