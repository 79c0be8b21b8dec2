"""A deterministic language model: pseudorandom draws, text, log-probabilities.

The context is folded into one number, token by token; the next token follows from it. So greedy outputs
repeat, two contexts that differ once stay different, and a step takes a few multiplications. Text is made of
sentences over a small vocabulary. A fact in the prompt ("The code for Otter is 4711.") is given when the
prompt has a question for it, and so are sums of whole numbers, and the known facts of the corpus.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from sparkwright.verify.corpus import load_corpus

_MASK = (1 << 64) - 1


def mix(state: int, value: int) -> int:
    """Return the 64-bit *state* advanced by *value*: the finalizer of SplitMix64 over both."""
    state = ((state ^ value) + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def digest(data: bytes) -> int:
    """Return a 64-bit hash of *data*."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def unit(state: int) -> float:
    """Return *state* as a number in (0, 1)."""
    return ((state >> 11) + 0.5) / (1 << 53)


def gaussian(state: int) -> float:
    """Return *state* as a draw from the standard normal distribution (Box and Muller)."""
    return math.sqrt(-2 * math.log(unit(mix(state, 1)))) * math.cos(2 * math.pi * unit(mix(state, 2)))


def gumbel(state: int) -> float:
    """Return *state* as a draw from the Gumbel distribution; the largest logit + draw samples a softmax."""
    return -math.log(-math.log(unit(state)))


# Token ids: single characters have their code points, the vocabulary's words follow, and all other pieces of
# prompts have hashes. Generated tokens always have a spelling.
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
_NEVER: Final = " cobalt"  # only faulty sentences contain it
_PIECES: Final = (*dict.fromkeys(word for words in _VOCABULARY.values() for word in words), _NEVER)
_IDS: Final = {piece: _WORD_0 + index for index, piece in enumerate(_PIECES)}
_SLOTS: Final = {slot: tuple(_IDS[word] for word in words) for slot, words in _VOCABULARY.items()}
_TOKEN: Final = re.compile(r" ?[^\W\d_]{1,8}| ?\d{1,3}|\s+| ?[^\w\s]{1,3}|.", re.DOTALL)
_SENTENCE: Final = "DANVPDANJDANVDAN."

_TIES: Final = 0.02  # share of positions with two tokens that are about as likely
_TIE_NAT: Final = 0.04
_NOISE_NAT: Final = 0.02  # deviation of logits between kinds of batches
_SURE_NAT: Final = 7.0  # lead of a token without an alternative
_NEXT_NAT: Final = 0.9  # between alternatives after the second
_TAIL: Final = 0.001  # weight of all tokens that are not among the alternatives
_ALTERNATIVES: Final = 8
_STRANGE: Final = tuple(map(ord, "Жש中กKअ한ω"))  # letters of as many alphabets


def encode(text: str) -> list[int]:
    """Return the tokens of *text*; about four letters each in English."""
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
    """Return the text of *tokens*; pieces of prompts outside the vocabulary have none."""
    return "".join(map(_spelling, tokens))


@lru_cache(1 << 16)
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
    """Return the answer to the question, sum or known fact at the end of *text*; empty if there is none.

    Where the text ends with the beginning of the answer, the rest of it is returned.
    """
    asked = list(_ASKED.finditer(text, max(0, len(text) - _LAST)))
    if asked:
        wanted = asked[-1]
        for fact in re.finditer(_FACT, text, re.IGNORECASE):
            if all(fact[key].casefold() == wanted[key].casefold() for key in ("what", "name")):
                lead = f" The {fact['what']} {fact['of']} {fact['name']} is"
                return f" {fact['value']}." if text.endswith(lead) else f"{lead} {fact['value']}."
    sums = list(_SUM.finditer(text, max(0, len(text) - _LAST)))
    if sums:
        left, sign, right = sums[-1].groups()
        a, b = int(left), int(right)
        value = a + b if sign == "+" else a - b if sign == "-" else a * b
        return f" The result is {value}."
    known = (fact for fact in load_corpus().known if text.find(fact.text, -_LAST) >= 0)
    return next((f" The answer is {fact.expect}." for fact in known), "")


def spell(text: str) -> list[int]:
    """Return tokens that read exactly like *text*."""
    pieces = _TOKEN.findall(text)
    return [token for piece in pieces for token in ([_IDS[piece]] if piece in _IDS else map(ord, piece))]


# Sampling -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request.

    Attributes:
        temperature: 0 is greedy.
        stops: the model may end its output.
        noise: identifies the kernels whose rounding decides near ties; 0 takes the more likely token.
        ties: share of near ties that a fault turns the other way.
        wrong: chance of an unlikely token, by a fault.
        wrong_at: position of such a token, by a fault; -1 for none.
        loop: a text that a fault repeats without end.
        detailed: compute log-probabilities.
        error: deviation of an error of logits, by a fault: the same each time, as that of wrong weights.
        step: logits are multiples of it, by a fault; 0 for any value.
        scattered: tokens of many alphabets, by a fault.
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
    error: float = 0.0
    step: float = 0.0
    scattered: bool = False


class Choice(NamedTuple):
    """One generated token, and the most likely ones with their log-probabilities, most likely first.

    The log-probabilities are present if `Sampling.detailed` is set.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class _Options(NamedTuple):
    """The candidates for the next token: *tokens* from index *first* on, most likely first."""

    tokens: tuple[int, ...]
    first: int
    gap: float

    @property
    def many(self) -> int:
        """Return the number of candidates that can be chosen or reported."""
        return min(_ALTERNATIVES, len(self.tokens))

    def token(self, rank: int) -> int:
        """Return the candidate of this *rank*, 0 for the most likely."""
        return self.tokens[(self.first + rank) % len(self.tokens)]

    def logits(self) -> list[float]:
        """Return each candidate's logit, most likely first."""
        return [0.0, *(-self.gap - _NEXT_NAT * rank for rank in range(self.many - 1))]

    def logprobs(self, logits: Sequence[float] = ()) -> tuple[tuple[int, float], ...]:
        """Return each candidate with its log-probability, most likely first; by *logits*, if given."""
        logits = logits or self.logits()
        total = math.log(sum(map(math.exp, logits)) + _TAIL)
        found = [(self.token(rank), logit - total) for rank, logit in enumerate(logits)]
        return tuple(sorted(found, key=lambda entry: -entry[1]))


class TokenGenerator:
    """The generator of one sequence; each token follows from those before it."""

    def __init__(self, prompt: Sequence[int], answer: str, sampling: Sampling) -> None:
        self._state = digest(array("q", prompt).tobytes())
        self._sampling = sampling
        self._script = spell(answer)
        self._slot = 0
        self.emitted = 0
        # Free text ends after 60 to 400 tokens, an answer to a question after its last token.
        self._length = len(self._script) or 60 + self._state % 341

    def next(self, noise: int) -> Choice:
        """Generate one more token."""
        options = self._options()
        rank = self._rank(options, noise)
        token = options.token(rank)
        top = options.logprobs(self._logits(options, noise)) if self._sampling.detailed else ()
        self._state = mix(self._state, token)
        self.emitted += 1
        self._slot = self._next_slot() if self.emitted > len(self._script) else 0
        return Choice(token, dict(top)[token] if top else 0.0, top)

    def go_wrong(self, rate: float) -> None:
        """Generate wrong tokens at this *rate* from here on."""
        self._sampling = replace(self._sampling, wrong=rate)

    def misjudge(self, error: float) -> None:
        """Add an error of this deviation to logits from here on."""
        self._sampling = replace(self._sampling, error=error)

    def _options(self) -> _Options:
        """Return the candidates at this position."""
        sampling, emitted = self._sampling, self.emitted
        if sampling.loop:
            loop = spell(sampling.loop)
            return _Options((loop[emitted % len(loop)], _IDS[_NEVER]), 0, _SURE_NAT)
        if sampling.stops and emitted >= self._length:
            return _Options((EOS, _IDS[_NEVER]), 0, _SURE_NAT)
        if emitted < len(self._script) and not sampling.scattered:
            return _Options((self._script[emitted], _IDS[_NEVER]), 0, _SURE_NAT)
        if sampling.scattered:
            strange = _STRANGE[self._state % len(_STRANGE)] if emitted % 2 else ord(" ")
            return _Options((strange, _IDS[_NEVER]), 0, _SURE_NAT)
        tokens, state = _SLOTS[_SENTENCE[self._slot]], mix(self._state, 11)
        return _Options(tokens, state % len(tokens), self._gap(state))

    def _gap(self, state: int) -> float:
        """Return the difference between the two best log-probabilities, in nats."""
        drawn = unit(state)
        if drawn < _TIES:
            return _TIE_NAT * drawn / _TIES
        return 0.4 + 4 * ((drawn - _TIES) / (1 - _TIES)) ** 2

    def _rank(self, options: _Options, noise: int) -> int:
        """Return the rank of the token to generate, 0 for the most likely."""
        sampling = self._sampling
        if sampling.wrong_at == self.emitted or (
            sampling.wrong and unit(mix(self._state, 13)) < sampling.wrong
        ):
            return options.many - 1
        if sampling.temperature > 0:
            draws = [
                logprob / sampling.temperature + gumbel(mix(mix(sampling.seed, self._state), rank))
                for rank, (_, logprob) in enumerate(options.logprobs())
            ]
            return draws.index(max(draws))
        if sampling.error or sampling.step:
            logits = self._logits(options, noise)
            return logits.index(max(logits))
        if options.gap >= _TIE_NAT:
            return 0
        if sampling.ties and unit(mix(self._state, 14)) < sampling.ties:
            return 1
        return int(self._moved(noise) > options.gap) if sampling.noise else 0

    def _moved(self, noise: int) -> float:
        """Return the rounding of the second candidate's logit, which differs from kernel to kernel."""
        return gaussian(mix(mix(self._sampling.noise, noise), self._state)) * _NOISE_NAT

    def _logits(self, options: _Options, noise: int) -> list[float]:
        """Return the candidates' logits by rank as kernels and faults make them."""
        sampling, logits = self._sampling, options.logits()
        if sampling.error:
            logits = [
                logit + sampling.error * gaussian(mix(mix(self._state, 17), rank))
                for rank, logit in enumerate(logits)
            ]
        if sampling.step:  # the zero point lies anywhere between two steps
            zero = sampling.step * unit(mix(self._state, 18))
            logits = [round((logit + zero) / sampling.step) * sampling.step - zero for logit in logits]
        if sampling.noise:
            kernel = mix(mix(sampling.noise, noise), self._state)
            for rank in range(2, len(logits)):
                logits[rank] += gaussian(mix(kernel, rank)) * _NOISE_NAT
            if options.gap >= _TIE_NAT:  # near ties are those of `_rank`
                logits[1] += self._moved(noise)
        return logits

    def _next_slot(self) -> int:
        """Return the next position in a sentence; adjectives and subordinate clauses may be left out."""
        slot = (self._slot + 1) % len(_SENTENCE)
        if _SENTENCE[slot] == "A" and self._state & 1:
            slot += 1
        if _SENTENCE[slot] == "J" and self._state & 6:
            slot = len(_SENTENCE) - 1
        return slot


def acceptance_table(k: int) -> tuple[float, ...]:
    """Return the chance of acceptance at each of *k* positions, given that all before it were accepted.

    With seven drafted tokens the mean acceptance length is 3.8, whatever the prompt is about.
    """
    return tuple(0.86 * 0.93**position for position in range(k))


def accepted_tokens(chances: tuple[float, ...], factor: float, state: int) -> int:
    """Return the number of accepted draft tokens; the first rejected one ends it."""
    for position, chance in enumerate(chances):
        if unit(mix(state, position)) >= chance * factor:
            return position
    return len(chances)
