"""A stored reference of one checkpoint: greedy answers with the probabilities of their tokens.

Its file, the server that it is made on, and the refusal of a server of another model. The check that compares
a server with it is `verify.checks.reference`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import ConfigError, EndpointError, NewerFormatError, StorageError
from sparkwright.engine.capabilities import TOKENIZE
from sparkwright.engine.client import Endpoint, EndpointFacts
from sparkwright.engine.client.tokens import token_ids
from sparkwright.engine.deadlines import Deadlines
from sparkwright.engine.observations import BootFacts, Observation, Sample, TokenLogprobs

if TYPE_CHECKING:
    import aiohttp


FORMAT = 1
KEPT_DIGITS = 5
"""Digits of log-probabilities after the point."""
_MOST_BYTES = 1 << 30
_MAGIC = b"\x1f\x8b"


class ModelIdentity(Model, frozen=True):
    """The server that a reference was made on.

    Attributes:
        model: name that it serves its model under.
        max_model_len: tokens of its longest request; -1 if not reported.
        tokens: digest of a fixed text's tokens by its tokenizer; empty if it has no ``POST /tokenize``.
        quantization: of the weights, as its log names it; empty if unknown.
        kv_dtype: type of the KV cache; empty if unknown.
    """

    model: str
    version: str = ""
    max_model_len: int = -1
    tokens: str = ""
    quantization: str = ""
    kv_dtype: str = ""


class Reference(Model, frozen=True):
    """Greedy answers of one checkpoint.

    Attributes:
        created: time at which it was made, ISO 8601 in UTC.
        identity: the server that it was made on.
        answers: answers with log-probabilities, one request at a time.
        again: the same prompts, several at a time: how far the server is from itself.
    """

    identity: ModelIdentity
    answers: tuple[Observation, ...]
    again: tuple[Observation, ...]
    created: str = ""
    made_by: str = ""

    @property
    def longest(self) -> int:
        """Tokens of its longest request, prompt and output."""
        return max(
            sample.prompt_tokens + observation.cell.load.max_tokens
            for observation in self.answers
            for sample in observation.samples
        )


def trimmed(observation: Observation) -> Observation:
    """Return *observation* with what a reference keeps of it: prompts, tokens and log-probabilities."""
    samples = tuple(
        Sample(
            prompt=sample.prompt,
            category=sample.category,
            started=0,
            ended=0,
            prompt_tokens=sample.prompt_tokens,
            output_tokens=sample.output_tokens,
            finish_reason=sample.finish_reason,
            text=sample.text,
            token_ids=sample.token_ids,
            logprobs=tuple(map(_rounded, sample.logprobs)),
        )
        for sample in observation.counted
    )
    return Observation(cell=observation.cell, samples=samples)


def _rounded(entry: TokenLogprobs) -> TokenLogprobs:
    top = {token: round(logprob, KEPT_DIGITS) for token, logprob in entry.top.items()}
    return TokenLogprobs(entry.token, round(entry.logprob, KEPT_DIGITS), top)


def write_reference(reference: Reference, path: Path) -> str:
    """Write *reference*, compressed, to *path*; return the digest of its content.

    Raises:
        StorageError: the file cannot be written.
    """
    content = msgspec.json.encode(reference)
    data = msgspec.json.encode(_File(FORMAT, sha256_bytes(content), msgspec.Raw(content)))
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(gzip.compress(data, mtime=0))
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise StorageError(f"{path} could not be written", because=error.strerror or str(error)) from error
    return sha256_bytes(content)


def load_reference(path: Path) -> Reference:
    """Return the reference in the file at *path*.

    Raises:
        NewerFormatError: its format is newer than this program's.
        ConfigError: there is none, or it is not what was written.
    """
    file = _read(path)
    try:
        reference = decode_json(file.content, Reference)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unusable(path, str(error)) from error
    if not all(observation.samples for observation in (*reference.answers, *reference.again)):
        raise _unusable(path, "it has no answers")
    return reference


def reference_digest(path: Path) -> str:
    """Return the digest of the content of the reference at *path*.

    Raises:
        NewerFormatError: its format is newer than this program's.
        ConfigError: there is none, or it is not what was written.
    """
    return _read(path).digest


class _Head(msgspec.Struct):
    format: int


class _File(msgspec.Struct):
    """The file: the digest is of the content's bytes, so that later fields of a model do not change it."""

    format: int
    digest: str
    content: msgspec.Raw


def _read(path: Path) -> _File:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", because=error.strerror or str(error)) from error
    try:
        plain = _unpacked(data)
        found = decode_json(plain, _Head).format
        if found > FORMAT:
            raise NewerFormatError(
                f"{path} cannot be read",
                because=f"its format is {found}, and this sparkwright knows {FORMAT}",
                next_step="use the sparkwright that made it, or a newer one",
            )
        file = decode_json(plain, _File)
    except (msgspec.MsgspecError, OSError, EOFError, ValueError, zlib.error) as error:
        raise _unusable(path, str(error)) from error
    if file.digest != sha256_bytes(bytes(file.content)):
        raise _unusable(path, "its content is not that of its digest: it was cut or changed")
    return file


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(_MAGIC):
        return data
    unpack = zlib.decompressobj(wbits=31)
    plain = unpack.decompress(data, _MOST_BYTES)
    if not unpack.eof:
        raise EOFError("the compressed data ends early, or is too large")
    return plain


def _unusable(path: Path, because: str) -> ConfigError:
    return ConfigError(
        f"{path} is no reference that can be used",
        because=because,
        next_step="make one: sparkwright verify reference make --url URL -o FILE",
    )


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
