"""The measurements of a model over caches of each format: text, needles, greedy answers, calls of a tool.

A measurement takes names of formats and yields a row for each. The cache of 16 bits, which a row is compared
with, is computed with it.
"""

from __future__ import annotations

import json
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kv_quality.formats import FORMATS
from kv_quality.texts import CITIES, COLOURS, QUESTIONS, TOOL, passages, prose, sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kv_quality.subject import Subject

    Rows = Iterator[dict[str, Any]]
    Measure = Callable[[Sequence[str]], Rows]

__all__ = ["calibration", "divergence", "plan", "prompts"]

BASE = next(iter(FORMATS))
CHUNK = 256  # positions whose logits are in memory at a time
WINDOW, CALIBRATION = 1024, 1024  # tokens
SMALL_VOCABULARY, STRIDE = 65_536, 4  # of larger vocabularies every fourth position is scored
NEEDLE_CONTEXTS, NEEDLES = (192, 768), 6
GREEDY_TOKENS, CALL_TOKENS = 64, 44
PASSAGES, PASSAGE = 6, 240  # characters
SHARES = (0.0, 0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875)  # of a text, where windows begin
SERVED = ("16 bits", "FP8", "NVFP4", "NVFP4, calibrated", "NVFP4, 4 over 6")
"""Formats of the measurements other than text."""


def divergence(base: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return the Kullback-Leibler divergence at each position, in nats.

    Args:
        base: scores that the others are compared with (positions x vocabulary).
        scores: of the other model.
    """
    chance = base.softmax(-1)
    return expected(chance, base) - expected(chance, scores)


def expected(chance: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return the mean log-probability that *scores* give to tokens drawn by *chance*, at each position."""
    return torch.linalg.vecdot(chance, scores) - scores.logsumexp(-1)


def score_text(subject: Subject, tokens: Sequence[int], names: Sequence[str]) -> Rows:
    """Yield loss and divergence at each position of *tokens*, each fourth if the vocabulary is large."""
    ids = [*subject.first, *tokens]
    stride = 1 if subject.model.config.vocab_size <= SMALL_VOCABULARY else STRIDE
    wanted = torch.tensor(ids[1:])[::stride]
    reference = subject.hidden(ids, BASE)[:-1:stride]
    parts = [slice(at, at + CHUNK) for at in range(0, len(wanted), CHUNK)]
    bases = [subject.scores(reference[part]) for part in parts]
    chances = [base.softmax(-1) for base in bases]
    for name in names:
        hidden = reference if name == BASE else subject.hidden(ids, name)[:-1:stride]
        row: dict[str, list[Any]] = {"loss": [], "kl": [], "same": []}
        for part, base, chance in zip(parts, bases, chances, strict=True):
            scores = subject.scores(hidden[part])
            chosen = scores.gather(1, wanted[part, None])[:, 0]
            row["loss"] += rounded(scores.logsumexp(-1) - chosen)
            row["kl"] += rounded(expected(chance, base) - expected(chance, scores))
            row["same"] += (base.argmax(-1) == scores.argmax(-1)).int().tolist()
        yield {"format": name, "stride": stride, **row}


def rounded(values: torch.Tensor) -> list[float]:
    """Return *values* with five significant digits."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def find_needle(
    subject: Subject, filler: Sequence[int], length: int, number: int, names: Sequence[str]
) -> Rows:
    """Yield whether a code would be repeated that stood up to *length* tokens back, and how likely it is."""
    draw = random.Random(1000 * length + number)  # noqa: S311 - not a secret
    colour, code = COLOURS[number % len(COLOURS)], str(draw.randrange(10_000, 99_999))
    other = COLOURS[(number + 3) % len(COLOURS)]
    at = draw.randrange(length // 10, length - length // 10)
    begin = draw.randrange(0, len(filler) - length)
    text = filler[begin : begin + length]
    needle = f"\n\nThe secret code of the {colour} box is {code}.\n\n"
    decoy = f"\n\nThe secret code of the {other} box is {draw.randrange(10_000, 99_999)}.\n\n"
    prompt = [
        *subject.first, *text[: at // 2], *subject.tokens(decoy), *text[at // 2 : at],
        *subject.tokens(needle), *text[at:], *subject.tokens(f"\n\nThe secret code of the {colour} box is"),
    ]  # fmt: skip
    answer = subject.tokens(f" {code}")
    for name in names:
        hidden = subject.hidden([*prompt, *answer], name)[len(prompt) - 1 : -1]
        found = subject.scores(hidden).log_softmax(-1)
        yield {
            "format": name,
            "right": bool((found.argmax(-1) == torch.tensor(answer)).all()),
            "log_probability": float(found.gather(1, torch.tensor(answer)[:, None]).sum()),
        }


def prompts(subject: Subject) -> dict[str, list[int]]:
    """Return the prompts of greedy answers: questions, and code to repeat."""
    found = {f"question {number}": subject.chat(one) for number, one in enumerate(QUESTIONS)}
    for number, passage in enumerate(passages(PASSAGES, PASSAGE)):
        found[f"code {number}"] = subject.chat(f"Repeat this code with comments:\n\n{passage}")
    return found


def answer_greedily(subject: Subject, names: Sequence[str]) -> Rows:
    """Yield the greedy answers to all prompts."""
    asked = prompts(subject)
    for name in names:
        answers = subject.greedy(list(asked.values()), name, GREEDY_TOKENS)
        yield {"format": name, "answers": dict(zip(asked, answers, strict=True))}


def call_tool(subject: Subject, names: Sequence[str]) -> Rows:
    """Yield whether each answer has valid JSON, and whether it is the call that was asked for."""
    units = ["celsius" if number % 3 else "fahrenheit" for number in range(len(CITIES))]
    asked = [
        subject.chat(TOOL.replace("{city}", city).replace("{unit}", unit))
        for city, unit in zip(CITIES, units, strict=True)
    ]
    for name in names:
        answers = subject.greedy(asked, name, CALL_TOKENS)
        texts = [subject.tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
        calls = [read_call(text) for text in texts]
        right = [
            call == {"name": "get_weather", "arguments": {"city": city, "unit": unit}}
            for call, city, unit in zip(calls, CITIES, units, strict=True)
        ]
        yield {"format": name, "valid": [call is not None for call in calls], "right": right, "texts": texts}


def read_call(text: str) -> Any:
    """Return the first object of JSON in *text*, whatever is written before and after it, or nothing."""
    try:
        return json.JSONDecoder().raw_decode(text[max(text.find("{"), 0) :])[0]
    except ValueError:
        return None


def calibration(subject: Subject) -> list[int]:
    """Return the tokens that scales are calibrated on: the beginnings of both texts, which are not scored."""
    half = CALIBRATION // 2
    return [token for text in (prose(), sources()) for token in subject.tokens(text[: 8 * half])[:half]]


def plan(subject: Subject, windows: int) -> Iterator[tuple[str, Sequence[str], Measure]]:
    """Yield a name for each measurement, its formats, and the function that makes it.

    Args:
        subject: the model.
        windows: of text; prose and code by turns.
    """
    texts = [subject.tokens(text)[CALIBRATION:] for text in (prose(), sources())]
    scored = [
        (f"text {name} {number}", tuple(FORMATS), partial(score_text, subject, text[begin : begin + WINDOW]))
        for number, share in enumerate(SHARES[: windows // 2])
        for name, text in zip(("prose", "code"), texts, strict=True)
        for begin in [int(share * (len(text) - WINDOW))]
    ]
    yield from scored[:4]
    yield "greedy all", SERVED, partial(answer_greedily, subject)
    yield "tools all", SERVED, partial(call_tool, subject)
    for length in NEEDLE_CONTEXTS:
        for number in range(NEEDLES):
            yield f"needle {length} {number}", SERVED, partial(find_needle, subject, texts[0], length, number)
    yield from scored[4:]
