"""The warm-up: requests of growing size and number, so that nothing is compiled while users wait.

CUDA graphs are captured at the start, but kernels are compiled when a shape is first met: a prompt of another
length, a batch of another size, sampling, a chat template.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from sparkwright.base.errors import ServerError
from sparkwright.base.events import emit, task, warn
from sparkwright.engine.cell import Cell, Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.client.load import run_load
from sparkwright.engine.observations import BootFacts
from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.kv_plan import flag_number

if TYPE_CHECKING:
    import aiohttp


LIMIT_S = 900.0
"""Seconds after which no further round begins."""
_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_SHORT, _OUTPUT = 16, 32
_GROWTH = 4
_LONGEST = 32_768  # longer prompts are chunks of the same size
_WORD_SHARE = 0.6  # words for each token that fits: a word may be more than one token
_USUAL_BATCHED, _USUAL_SEQS, _USUAL_LEN = 2048, 16, 4096


@dataclass(frozen=True)
class Round:
    """Requests that are sent together, each of so many words; the batch shrinks request by request."""

    requests: int
    words: int
    chat: bool = False
    temperature: float = 0.0


@dataclass(frozen=True)
class Limits:
    """The largest sizes that a server takes."""

    requests: int = _USUAL_SEQS
    step_tokens: int = _USUAL_BATCHED
    model_len: int = _USUAL_LEN

    @classmethod
    def of(cls, recipe: Recipe, facts: BootFacts) -> Limits:
        """Return the limits that *recipe* sets, else those that the server reported, else usual ones."""
        return cls(
            requests=_whole(recipe, "max-num-seqs", facts.max_num_seqs, _USUAL_SEQS),
            step_tokens=_whole(recipe, "max-num-batched-tokens", -1, _USUAL_BATCHED),
            model_len=_whole(recipe, "max-model-len", facts.max_model_len, _USUAL_LEN),
        )


def _whole(recipe: Recipe, flag: str, reported: int, usual: int) -> int:
    return next(value for value in (flag_number(recipe, flag, 0), reported, usual) if value > 0)


def rounds(limits: Limits) -> tuple[Round, ...]:
    """Return the rounds of a warm-up, from the smallest to the server's limits.

    Prompts grow until one takes more than a step, batches until as many requests run as may; then one round
    is sampled and one is a chat.
    """
    room = int((limits.model_len - _OUTPUT) * _WORD_SHARE)
    longest = min(room, 2 * limits.step_tokens, _LONGEST)
    sizes = [_SHORT]
    while sizes[-1] * _GROWTH < longest:
        sizes.append(sizes[-1] * _GROWTH)
    if longest > sizes[-1]:
        sizes.append(longest)
    sizes = [size for size in sizes if size <= room] or [1]
    batches = [1]
    while batches[-1] * 2 < limits.requests:
        batches.append(batches[-1] * 2)
    found = [Round(1, size) for size in sizes]
    found += [Round(batch, sizes[0]) for batch in [*batches[1:], limits.requests] if batch > 1]
    found += [Round(1, sizes[0], temperature=0.8), Round(1, sizes[0], chat=True)]
    return tuple(found)


@dataclass(frozen=True)
class WarmUp:
    """A finished warm-up.

    Attributes:
        slowest_s: the longest wait for a first token.
    """

    seconds: float
    requests: int
    slowest_s: float
    rounds: int


async def warm_up(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    limits: Limits,
    deadlines: Deadlines,
    *,
    speed: float = 1.0,
    limit_s: float = LIMIT_S,
) -> WarmUp:
    """Send the rounds of a warm-up, one after another.

    Raises:
        ServerError: a request failed.
    """
    planned = rounds(limits)
    began, requests, slowest, sent = time.monotonic(), 0, 0.0, 0
    with task("warm up", total=len(planned), unit="rounds") as progress:
        for number, this in enumerate(planned):
            if time.monotonic() - began > limit_s:
                warn(f"the warm-up ends after {sent} of {len(planned)} rounds: it took {limit_s:.0f} s")
                break
            samples = await run_load(session, endpoint, _cell(number, this), deadlines, speed=speed)
            failed = [sample.failure for sample in samples if sample.failure is not None]
            if failed:
                raise ServerError(
                    f"the server failed its warm-up with {this.requests} requests of {this.words} words",
                    because=f"{len(failed)} of {len(samples)} failed; {failed[0].kind}: {failed[0].detail}",
                    next_step="see the server's log; --no-warm-up serves without it",
                )
            first = [(sample.chunks[0].at - sample.started) / 1e9 for sample in samples if sample.chunks]
            requests, slowest, sent = requests + len(samples), max([slowest, *first]), sent + 1
            emit(
                "warmup.round", requests=this.requests, words=this.words, first_token_s=max(first, default=-1)
            )
            progress.advance()
    return WarmUp(time.monotonic() - began, requests, slowest, sent)


def _cell(number: int, this: Round) -> Cell:
    load = Load(
        shape="burst" if this.requests == 1 else "drain",
        concurrency=this.requests,
        requests=this.requests,
        max_tokens=_OUTPUT,
        min_tokens=1,
        natural_stop=this.chat,
        chat=this.chat,
        temperature=this.temperature,
    )
    prompts = tuple(
        Prompt(name=f"warm-up {number}.{one}", category="warm-up", text=_text(number, one, this.words))
        for one in range(this.requests)
    )
    return Cell(check="warm-up", name=f"round {number}", load=load, prompts=prompts)


def _text(number: int, one: int, words: int) -> str:
    """Return a prompt of about *words* words that begins like no other, so that it is prefilled whole."""
    return " ".join([f"{number}.{one}", *islice(cycle(_WORDS), words)])
