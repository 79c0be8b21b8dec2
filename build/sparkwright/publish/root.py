"""A publisher's root: its keys and identities, and what each may sign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.errors import UntrustedKeyError
from sparkwright.publish.channel import moment

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey


Role = Literal["roots", "channels"]


FORMAT = 1


class TrustedKey(Model, frozen=True):
    """A public key and its time.

    Attributes:
        id: its id, which is computed from the key.
        public: the ed25519 key, 64 hex digits.
        roles: what it may sign: next versions of this root, channels with their statements, or both.
        start: since when it is in use, in UTC.
        end: until when it signed channels, in UTC; empty while it does.
        revoked: when it was revoked, in UTC; empty if it is not. Nothing that it signed is trusted, whatever
            time that states.
    """

    id: str
    public: str
    roles: tuple[Role, ...]
    start: str
    end: str = ""
    revoked: str = ""
    reason: str = ""


class TrustedIdentity(Model, frozen=True):
    """An identity that sigstore confirms, such as that of one workflow of one repository.

    Attributes:
        identity: the certificate's subject, such as the workflow's address with its ref.
        issuer: the issuer of its tokens.
    """

    identity: str
    issuer: str


class TrustRoot(Model, frozen=True):
    """One version of a publisher's root.

    Attributes:
        publisher: id of the publisher's first key; it names the publisher for ever.
        version: 1 for the first.
        written: when it was made, in UTC.
        keys: all keys, former ones too.
        identities: identities whose sigstore bundles are trusted for channels.
    """

    publisher: str
    version: int
    written: str
    keys: tuple[TrustedKey, ...]
    identities: tuple[TrustedIdentity, ...] = ()
    format: int = FORMAT

    @property
    def payload(self) -> bytes:
        """The canonical bytes, which are signed."""
        return to_json(to_builtins(self))

    def find(self, key_id: str) -> TrustedKey | None:
        """Return the key of that id, `None` if it is unknown."""
        return next((key for key in self.keys if key.id == key_id), None)

    def public_key(self, key_id: str) -> SSlibKey:
        """Return the key of that id for verifying.

        Raises:
            UntrustedKeyError: it is unknown.
        """
        from securesystemslib.signer import SSlibKey

        key = self.find(key_id)
        if key is None:
            raise UntrustedKeyError(f"key {key_id[:16]} is unknown", because="it is not in the pinned root")
        return SSlibKey(key.id, "ed25519", "ed25519", {"public": key.public})

    def refusal(self, key_id: str, written: str, role: str) -> str:
        """Return the reason for which the key may not have signed a statement; empty if it may.

        Args:
            key_id: the key's.
            written: the time that the statement states; empty for any.
            role: what it has to be allowed to sign.
        """
        key = self.find(key_id)
        if key is None:
            return f"key {key_id[:16]} is not in the pinned root"
        if key.revoked:
            return f"key {key_id[:16]} was revoked on {key.revoked}" + (
                f": {key.reason}" if key.reason else ""
            )
        if role not in key.roles:
            return f"key {key_id[:16]} may sign {' and '.join(key.roles)}, not {role}"
        if written:
            at = moment(written, "the statement")
            if at < moment(key.start, "the root") or (key.end and at > moment(key.end, "the root")):
                until = f" to {key.end}" if key.end else " on"
                return f"key {key_id[:16]} was in use from {key.start}{until}, not on {written}"
        return ""
