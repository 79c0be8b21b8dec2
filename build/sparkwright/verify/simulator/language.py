"""A deterministic "model": which token follows a context, how sure it is, and what that reads like.

The context is folded into one number, token by token; the next token follows from it. So greedy answers
repeat, two contexts that differ once differ for good, and no step needs more than a few multiplications.
Text is made of sentences over a small vocabulary. What the prompt states ("The code for Otter is 4711.") is
answered when it is asked for, and so are sums of whole numbers.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from sparkwright.verify.simulator.hashing import bell, digest, gumbel, mix, unit

if TYPE_CHECKING:
    from collections.abc import Sequence

# Token ids: single characters have their code points, the vocabulary's words follow, and all other pieces of
# prompts have hashes. What is generated can always be spelled.
EOS: Final = 0
_WORD_0: Final = 0x110000
_HASH_0: Final = 0x120000
_HASHES: Final = (1 << 24) - _HASH_0

_WORDS: Final = {
    "D": "the a one each some this that every another our",
    "A": "quiet bright small old narrow careful distant warm steady hidden open early simple naïve silver",
    "N": (
        "river engine garden window letter bridge market teacher forest signal harbour kitchen station "
        "painter mountain village lantern machine library journey café cloud table street island number "
        "pattern question answer morning winter valley road stone bird boat door field cellar façade"
    ),
    "V": (
        "follows carries opens finds holds crosses watches turns meets keeps builds reaches leaves paints "
        "measures shows needs covers hears brings"
    ),
    "P": "under beside beyond near behind with for without above toward between around",
    "J": ", and|, but|; then|, while| — so",
    ".": ".|!|?|.\n\n",
}
_VOCABULARY: Final = {
    slot: tuple(words.split("|")) if slot in "J." else tuple(f" {word}" for word in words.split())
    for slot, words in _WORDS.items()
}
_NEVER: Final = " cobalt"  # no sentence holds it but a faulty one
_PIECES: Final = (*dict.fromkeys(word for words in _VOCABULARY.values() for word in words), _NEVER)
_IDS: Final = {piece: _WORD_0 + index for index, piece in enumerate(_PIECES)}
_SLOTS: Final = {slot: tuple(_IDS[word] for word in words) for slot, words in _VOCABULARY.items()}
_TOKEN: Final = re.compile(r" ?[^\W\d_]{1,8}| ?\d{1,3}|\s+| ?[^\w\s]{1,3}|.", re.DOTALL)
_SENTENCE: Final = "DANVPDANJDANVDAN."

_TIES: Final = 0.02  # share of positions with two tokens that are about as likely
_TIE_NAT: Final = 0.04
_NOISE_NAT: Final = 0.02  # how far the numbers of one kind of batch are from those of another
_SURE_NAT: Final = 7.0  # by how much a token is more likely that leaves no choice
_NEXT_NAT: Final = 0.9  # between alternatives after the second
_TAIL: Final = 0.001  # weight of all tokens that are not among the alternatives
_ALTERNATIVES: Final = 8


def encode(text: str) -> list[int]:
    """The tokens of *text*; about four letters each in English."""
    return [_token(piece) for piece in _TOKEN.findall(text)]


@cache
def _spelling(token: int) -> str:
    if token == EOS:
        return ""
    if token < _WORD_0:
        return chr(token)
    index = token - _WORD_0
    return _PIECES[index] if index < len(_PIECES) else ""


def text_of(tokens: Sequence[int]) -> str:
    """What *tokens* read like; pieces of prompts that are in no vocabulary are lost."""
    return "".join(map(_spelling, tokens))


def _token(piece: str) -> int:
    known = _IDS.get(piece)
    if known is not None:
        return known
    return ord(piece) if len(piece) == 1 else _HASH_0 + crc32(piece.encode()) % _HASHES


# Answers ------------------------------------------------------------------------------------------------

_FACT: Final = r"\bThe (?P<what>[\w -]{2,60}?) (?P<of>for|of) (?P<name>[\w -]{1,60}?) is (?P<value>[^\s.]+)\."
_ASKED: Final = re.compile(r"\bWhat is the (?P<what>[\w -]{2,60}?) (?P<of>for|of) (?P<name>[\w -]{1,60}?)\?")
_SUM: Final = re.compile(r"(?<![\w.])(-?\d{1,9})\s+([-+*x\u00d7])\s+(\d{1,9})(?![\w.])")
_LAST: Final = 3000  # characters at the end, where a question is


def answer_to(text: str) -> str:
    """What the prompt's own question has as its answer; empty where it asks for nothing that we know."""
    asked = list(_ASKED.finditer(text, max(0, len(text) - _LAST)))
    if asked:
        wanted = asked[-1]
        for fact in re.finditer(_FACT, text, re.IGNORECASE):
            if all(fact[key].casefold() == wanted[key].casefold() for key in ("what", "name")):
                return f" The {fact['what']} {fact['of']} {fact['name']} is {fact['value']}."
    sums = list(_SUM.finditer(text, max(0, len(text) - _LAST)))
    if sums:
        left, sign, right = sums[-1].groups()
        a, b = int(left), int(right)
        value = a + b if sign == "+" else a - b if sign == "-" else a * b
        return f" The result is {value}."
    return ""


def _spell(text: str) -> list[int]:
    """Tokens that read like *text* exactly."""
    pieces = _TOKEN.findall(text)
    return [token for piece in pieces for token in ([_IDS[piece]] if piece in _IDS else map(ord, piece))]


# Sampling -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 is greedy.
        seed: of what is drawn.
        stops: whether the model may end its answer.
        noise: names the kernels whose rounding decides near ties; 0 decides them as the model has it.
        ties: share of near ties that a fault turns the other way.
        wrong: chance of a token that is far from likely, by a fault.
        wrong_at: position of such a token, by a fault; -1 for none.
        loop: a text that a fault repeats for ever.
        detailed: whether log-probabilities are wanted.
    """

    temperature: float = 0.0
    seed: int = 0
    stops: bool = False
    noise: int = 0
    ties: float = 0.0
    wrong: float = 0.0
    wrong_at: int = -1
    loop: str = ""
    detailed: bool = False


class Choice(NamedTuple):
    """One generated token, and the most likely ones with their log-probabilities, most likely first.

    The log-probabilities are there when `Sampling.detailed` asks for them.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class _Options(NamedTuple):
    """What may be said next: *tokens* from the one at *first* on, in the order of their likelihood."""

    tokens: tuple[int, ...]
    first: int
    gap: float

    @property
    def many(self) -> int:
        """How many of them are ever said or told of."""
        return min(_ALTERNATIVES, len(self.tokens))

    def token(self, rank: int) -> int:
        """The one that is the most likely but for *rank* others."""
        return self.tokens[(self.first + rank) % len(self.tokens)]

    def logprobs(self) -> tuple[tuple[int, float], ...]:
        """Each with its log-probability, the most likely first."""
        logits = [0.0, *(-self.gap - _NEXT_NAT * rank for rank in range(self.many - 1))]
        total = math.log(sum(map(math.exp, logits)) + _TAIL)
        return tuple((self.token(rank), logit - total) for rank, logit in enumerate(logits))


class Speaker:
    """One sequence, told token by token; what it says next follows from what was said.

    Args:
        prompt: tokens that came before.
        answer: a text that it begins with.
        sampling: how it chooses.
    """

    def __init__(self, prompt: Sequence[int], answer: str, sampling: Sampling) -> None:
        self._state = digest(array("q", prompt).tobytes())
        self._sampling = sampling
        self._script = _spell(answer)
        self._slot = 0
        self.said = 0
        # An answer of its own ends after 60 to 400 tokens, one that was asked for ends when it is given.
        self._length = len(self._script) or 60 + self._state % 341

    def next(self, noise: int) -> Choice:
        """Say one token more.

        Args:
            noise: names the kernels that compute it: those for one request, or those for many.
        """
        options = self._options()
        rank = self._rank(options, noise)
        token = options.token(rank)
        top = options.logprobs() if self._sampling.detailed else ()
        self._state = mix(self._state, token)
        self.said += 1
        self._slot = self._next_slot() if self.said > len(self._script) else 0
        return Choice(token, top[rank][1] if top else 0.0, top)

    def _options(self) -> _Options:
        """The most likely tokens after what was said."""
        sampling, said = self._sampling, self.said
        if sampling.loop:
            loop = _spell(sampling.loop)
            return _Options((loop[said % len(loop)], _IDS[_NEVER]), 0, _SURE_NAT)
        if sampling.stops and said >= self._length:
            return _Options((EOS, _IDS[_NEVER]), 0, _SURE_NAT)
        if said < len(self._script):
            return _Options((self._script[said], _IDS[_NEVER]), 0, _SURE_NAT)
        tokens, state = _SLOTS[_SENTENCE[self._slot]], mix(self._state, 11)
        return _Options(tokens, state % len(tokens), self._gap(state))

    def _gap(self, state: int) -> float:
        """By how much the first token is more likely than the second, in nats."""
        drawn = unit(state)
        if drawn < _TIES:
            return _TIE_NAT * drawn / _TIES
        return 0.4 + 4 * ((drawn - _TIES) / (1 - _TIES)) ** 2

    def _rank(self, options: _Options, noise: int) -> int:
        """Which of the options is said, 0 for the most likely."""
        sampling = self._sampling
        if sampling.wrong_at == self.said or (sampling.wrong and unit(mix(self._state, 13)) < sampling.wrong):
            return options.many - 1
        if sampling.temperature > 0:
            draws = [
                logprob / sampling.temperature + gumbel(mix(mix(sampling.seed, self._state), rank))
                for rank, (_, logprob) in enumerate(options.logprobs())
            ]
            return draws.index(max(draws))
        if options.gap >= _TIE_NAT:
            return 0
        if sampling.ties and unit(mix(self._state, 14)) < sampling.ties:
            return 1
        if not sampling.noise:
            return 0
        # Rounding moves logits a little, and every kernel does it in its own way.
        moved = bell(mix(mix(sampling.noise, noise), self._state)) * _NOISE_NAT
        return int(moved > options.gap)

    def _next_slot(self) -> int:
        """Where in a sentence the next token stands; adjectives and subordinate clauses may be left out."""
        slot = (self._slot + 1) % len(_SENTENCE)
        if _SENTENCE[slot] == "A" and self._state & 1:
            slot += 1
        if _SENTENCE[slot] == "J" and self._state & 6:
            slot = len(_SENTENCE) - 1
        return slot
