"""The statement by which a wheel comes into a channel: made, and read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.digests import to_json
from sparkwright.base.errors import SignatureError
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.evidence import FoundEvidence
from sparkwright.publish.provenance import STATEMENT

T = TypeVar("T")

PROMOTION = "urn:sparkwright:promotion:v1"
"""The predicate type of promotion statements."""


def promotion_statement(
    filename: str, sha256: str, draft: ChannelState, evidence: Sequence[FoundEvidence], runtime: str = ""
) -> bytes:
    """Return the in-toto statement that a wheel came into a generation by this evidence.

    Args:
        filename: name of the wheel.
        sha256: its digest.
        draft: the generation.
        evidence: the findings about the wheel.
        runtime: SHA-256 of its locked runtime; empty if it has none.
    """
    return to_json(
        {
            "_type": STATEMENT,
            "subject": [{"name": filename, "digest": {"sha256": sha256}}],
            "predicateType": PROMOTION,
            "predicate": {
                "channel": draft.channel,
                "origin": draft.origin,
                "generation": draft.generation,
                "promoted": draft.written,
                "evidence": [
                    {
                        "kind": one.evidence.kind,
                        "name": one.name,
                        "digest": {"sha256": one.sha256},
                        "made": one.evidence.made,
                        "tool": one.evidence.tool,
                        "files": one.evidence.files,
                    }
                    for one in evidence
                ],
                **({"runtime": {"digest": {"sha256": runtime}}} if runtime else {}),
            },
        }
    )


class StatementSubject(msgspec.Struct):
    """The name and the digests of a file that a statement is about."""

    name: str
    digest: dict[str, str]


class NamedFile(msgspec.Struct):
    """A file beside a wheel, by its digest."""

    digest: dict[str, str]


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


def decode_statement(data: bytes, model: type[T], what: str) -> T:
    """Return a statement as a *model*.

    Raises:
        SignatureError: it is another kind of statement.
    """
    try:
        return decode_json(data, model)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SignatureError(f"{what} is another kind of statement", because=str(error)) from error
