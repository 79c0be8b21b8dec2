"""In-toto statements about wheels of a channel, as a reader decodes them."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import SignatureError, TamperedError
from sparkwright.publish.channel import ChannelState, ListedWheel

T = TypeVar("T")

ELSEWHERE = "do not install from there; take another mirror"


class FileDigest(msgspec.Struct):
    """The digest of a file."""

    sha256: str


class StatementSubject(msgspec.Struct):
    """The name and the digests of a file that a statement is about."""

    name: str
    digest: dict[str, str]


class NamedFile(msgspec.Struct):
    """A file beside a wheel, by its digest."""

    digest: FileDigest


class PromotionPredicate(msgspec.Struct):
    """The part of a promotion that a reader verifies.

    Attributes:
        channel: the channel that the wheel was promoted to.
        evidence: the findings about it.
        runtime: its locked runtime, if it has one.
    """

    channel: str
    evidence: list[NamedFile]
    runtime: NamedFile | None = None


class InTotoStatement(msgspec.Struct):
    """An in-toto statement."""

    statement_type: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(name="_type")
    subject: list[StatementSubject]


class PromotionStatement(InTotoStatement):
    """The statement by which a wheel came into a channel."""

    predicate_type: Literal["urn:sparkwright:promotion:v1"] = msgspec.field(name="predicateType")
    predicate: PromotionPredicate


def decode_statement(payload: bytes, model: type[T], what: str) -> T:
    """Return a signed *payload* as a *model*.

    Raises:
        SignatureError: it is another kind of statement.
    """
    try:
        return decode_json(payload, model)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SignatureError(f"{what} is another kind of statement", because=str(error)) from error


def require_subject(statement: InTotoStatement, file: ListedWheel, what: str) -> None:
    """Refuse a statement about something else than *file*.

    Raises:
        TamperedError: it is.
    """
    if [subject.digest.get("sha256") for subject in statement.subject] != [file.sha256]:
        raise TamperedError(
            f"{what} is of another wheel",
            because=f"its subject is not SHA-256 {file.sha256}",
            next_step=ELSEWHERE,
        )


def require_listed(state: ChannelState, filename: str, sha256: str) -> ListedWheel:
    """Return the entry of a wheel that the user has, in a verified channel.

    Raises:
        TamperedError: the channel lists other bytes under its name, does not list it, or took it back.
    """
    file = state.find(sha256)
    if file is None:
        named = next((one for one in state.files if one.filename == filename), None)
        raise TamperedError(
            f"{filename} is not the wheel of channel {state.channel}"
            if named
            else f"{filename} is not listed",
            because=f"its SHA-256 is {sha256}, the channel's {named.sha256}"
            if named
            else f"channel {state.channel} has no wheel of SHA-256 {sha256}",
            next_step="do not install it; fetch it from the channel",
        )
    if file.yanked is not None:
        raise TamperedError(
            f"{filename} was taken back",
            because=f"channel {state.channel} yanked it: {file.yanked}",
            next_step="install the newest wheel of the channel instead",
        )
    return file
