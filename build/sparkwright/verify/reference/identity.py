"""The identity of a served model, and the refusal of another one than a reference's."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import EndpointError
from sparkwright.engine.capabilities import TOKENIZE
from sparkwright.engine.client import Endpoint, EndpointFacts
from sparkwright.engine.client.tokens import token_ids
from sparkwright.engine.deadlines import Deadlines
from sparkwright.engine.observations import BootFacts
from sparkwright.verify.reference.record import ModelIdentity, Reference

if TYPE_CHECKING:
    import aiohttp


# Words, numbers, code, other scripts, spaces and marks: tokenizers of two models differ somewhere in it.
_TEXT = """The harbour master counted 1234567 crates, "naïvely", at 09:41 — café prices: €3.50!
def fold(xs: list[int]) -> dict[str, float]:\n\treturn {f"{x:>8}": x ** 0.5 for x in xs if x % 2 == 0}
東京の天気は晴れです。 Привет, мир! مرحبا  🙂  <|im_start|>  antidisestablishmentarianism
"""


async def identify(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    known: EndpointFacts,
    facts: BootFacts,
    *,
    deadlines: Deadlines,
    lacks: Container[str],
) -> ModelIdentity:
    """Return the identity of the model at *endpoint*.

    Args:
        session: from `client.open_session`.
        endpoint: the server.
        known: facts that it reported.
        facts: facts in its log and counters.
        deadlines: deadlines of a request.
        lacks: capabilities that it lacks.

    Raises:
        EndpointError: its ``POST /tokenize`` fails.
    """
    tokens = ""
    if TOKENIZE not in lacks:
        tokens = digest_of(await token_ids(session, endpoint, _TEXT, deadlines))
    return ModelIdentity(
        model=known.model,
        version=known.version,
        max_model_len=known.max_model_len,
        tokens=tokens,
        quantization=facts.quantization,
        kv_dtype=facts.kv_dtype,
    )


def require_same_model(reference: Reference, found: ModelIdentity, where: str) -> None:
    """Refuse the server at *where* if a comparison with *reference* would be one of two models.

    Raises:
        EndpointError: its model has another name or another tokenizer, or takes shorter requests.
    """
    made_on = reference.identity
    because = ""
    if _base(made_on.model) != _base(found.model):
        because = f"the reference is of {made_on.model}, and the server serves {found.model}"
    elif made_on.tokens and found.tokens and made_on.tokens != found.tokens:
        because = "their tokenizers differ: a fixed text comes to other tokens"
    elif 0 < found.max_model_len < reference.longest:
        because = (
            f"the reference has requests of {reference.longest} tokens, and the server takes"
            f" {found.max_model_len} at the most"
        )
    if because:
        raise EndpointError(
            f"{where} cannot be compared with this reference",
            because=because,
            next_step="serve the checkpoint that it was made of, under its name (--served-model-name), or"
            " make a reference of this one",
        )


def _base(model: str) -> str:
    """Return the last part of a model's name: of a folder, it alone is the same on another machine."""
    return model.rstrip("/").rpartition("/")[2]
