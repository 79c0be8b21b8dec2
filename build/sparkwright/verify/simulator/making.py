"""Turn an HTTP request's parameters into a request of the simulated engine; apply faults of its output."""

from __future__ import annotations

import json
import math
import re
from typing import Final

from sparkwright.verify.simulator.acceptance import category_of
from sparkwright.verify.simulator.chat import CALLS, instance
from sparkwright.verify.simulator.faults import Faults
from sparkwright.verify.simulator.model import (
    Sampling,
    TokenGenerator,
    answer_to,
    digest,
    mix,
    spell,
    text_of,
)
from sparkwright.verify.simulator.params import RequestParams
from sparkwright.verify.simulator.request import Request
from sparkwright.verify.simulator.settings import Settings
from sparkwright.verify.simulator.vision import look_at

_REPEATED: Final = re.compile(r"\bRepeat [^:]*: “(?P<text>[^”]+)”")


_COUNTED: Final = re.compile(r"\bnumbers from (\d+) to (\d+)")


PLAIN: Final = " The river follows the old road."


_THOUGHTS: Final = (" the quiet river follows the old road.", " every narrow bridge crosses this valley.")


_FEWEST_THOUGHTS, _MORE_THOUGHTS = 8, 4  # sentences


def script_of(params: RequestParams, faults: Faults) -> str:
    """Return the text that the answer to a chat begins with; empty for free text."""
    if params.calls:
        return CALLS.join(arguments for _, arguments in params.calls)
    if params.schema:
        return json.dumps(instance(params.schema, params.question), ensure_ascii=False)
    repeated, counted = _REPEATED.search(params.question), _COUNTED.search(params.question)
    if params.images and "image-ignored" not in faults:
        answer = f" It is {look_at(params.images[-1])}."
    elif counted:
        answer = " " + ", ".join(map(str, range(int(counted[1]), int(counted[2]) + 1)))
    else:
        answer = f" {repeated['text']}" if repeated else answer_to(params.text)
    if "template-missing" in faults:
        return f"{answer or PLAIN}\nuser: Tell me more.\nassistant: The garden holds a quiet machine."
    if "reasoning-in-answer" in faults:
        return f" The user wants a short answer, so one sentence will do.\n</think>\n\n{answer or PLAIN}"
    return answer


def thoughts_of(params: RequestParams, settings: Settings) -> str:
    """Return the reasoning that a chat's output begins with; empty for none."""
    faults = settings.faults
    wanted = params.thinking or "thinking-not-off" in faults
    if not (settings.reasoning and params.chat and wanted) or params.calls or params.schema:
        return ""
    sentences = _FEWEST_THOUGHTS + digest(params.question.encode()) % _MORE_THOUGHTS
    tokens = spell("".join(_THOUGHTS[number % len(_THOUGHTS)] for number in range(sentences)))
    return text_of(tokens[: params.thinking_budget])


_ENDLESS: Final = 1 << 40
_LOOPS: Final = {"repeated-token": "!!!!", "one-token": " cobalt"}


def sampling_of(params: RequestParams, settings: Settings, number: int) -> Sampling:
    """Return the sampling parameters of a request, faults included."""
    faults, speculates = settings.faults, settings.k > 0
    wrong_at = faults.value("lossy-position", "at")
    loop = next((text for name, text in _LOOPS.items() if name in faults), "")
    return Sampling(
        temperature=0.0 if "temperature-ignored" in faults else params.temperature,
        seed=_seed_of(params, settings, number),
        scattered="sampling-garbage" in faults and params.temperature > 0,
        stops=not params.ignore_eos,
        # Kernels that verify drafts round differently from those that do not, and each start tunes its own.
        noise=mix(mix(settings.seed, 5), settings.k) | 1,
        ties=(faults.value("near-ties", "share") or 0.0) if speculates else 0.0,
        wrong=(faults.value("lossy", "rate") or 0.0) if speculates else 0.0,
        wrong_at=-1 if wrong_at is None or not speculates else int(wrong_at),
        loop=loop,
        detailed=params.logprobs >= 0,
        error=_logit_error(faults, len(params.tokens)),
        step=faults.value("coarse-weights", "step") or 0.0,
    )


def _logit_error(faults: Faults, tokens: int) -> float:
    """Return the deviation of the error that faults add to the logits after a prompt of *tokens*."""
    error = faults.value("wrong-layer", "error") or 0.0
    beyond = faults.value("wrong-positions", "beyond")
    if beyond is not None and tokens > beyond:
        error += faults.value("wrong-positions", "error") or 0.0
    return error


def _seed_of(params: RequestParams, settings: Settings, number: int) -> int:
    """Return the seed of a request's draws."""
    if "seed-fixed" in settings.faults:
        return 1
    given = 0 if "seed-ignored" in settings.faults else params.seed
    return given or mix(settings.seed, number)


def make_request(params: RequestParams, settings: Settings, number: int) -> Request:
    """Return the engine's request for *params*."""
    text = params.text or text_of(params.tokens)
    answer = script_of(params, settings.faults) if params.chat else answer_to(text)
    unread = settings.faults.value("limit-wrong", "share") or math.inf
    if "word-salad" in settings.faults or len(params.tokens) >= unread * settings.max_model_len:
        answer = ""
    thoughts = thoughts_of(params, settings)
    answer = thoughts + (answer or PLAIN) if thoughts else answer
    limit, reason = 0, ""
    for name, finish in (("early-stop", "stop"), ("abort", "abort")):
        if settings.faults.hits(name, number):
            limit = max(1, int(params.max_tokens * (settings.faults.value(name, "share") or 0)))
            reason = finish
    prefix = "chatcmpl" if params.chat else "cmpl"
    identity = digest(b"%d %s" % (settings.seed, text.encode(errors="replace")))
    name = params.named or f"{identity:016x}{number:08x}"
    return Request(
        number=number,
        name=f"{prefix}-{name}",
        tokens=list(params.tokens),
        max_tokens=_ENDLESS if settings.faults.hits("runaway", number) else params.max_tokens,
        generator=TokenGenerator(params.tokens, answer, sampling_of(params, settings, number)),
        category=category_of(text),
        identity=identity,
        limit=limit,
        limit_finish=reason,
        thoughts=len(spell(thoughts)),
    )
