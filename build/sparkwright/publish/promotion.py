"""The statement by which a wheel comes into a channel."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.base.digests import to_json
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.evidence import FoundEvidence
from sparkwright.publish.provenance import STATEMENT

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
