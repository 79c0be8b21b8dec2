"""A stored reference of one checkpoint: what a finished run recorded by the check ``reference``.

Its greedy answers, with the probabilities of their tokens, were asked one at a time, and again several at a
time, which shows how far that server is from itself. `verify.checks.reference` records and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import ConfigError, EndpointError
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.journal import read_journal

CHECK = "reference"
"""Name of the check that records a reference, and compares servers with one."""


@dataclass(frozen=True)
class Reference:
    """Greedy answers of one checkpoint.

    Attributes:
        answers: with log-probabilities, one request at a time.
        again: to the same prompts, several at a time.
        model: name of the model at an address; empty where a recipe was served.
        created: time at which the run began, ISO 8601 in UTC.
    """

    answers: tuple[Observation, ...]
    again: tuple[Observation, ...]
    model: str = ""
    created: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the answers."""
        return sha256_bytes(msgspec.json.encode((self.answers, self.again)))


def load_reference(folder: Path) -> Reference:
    """Return what the run in *folder* recorded.

    Raises:
        ConfigError: it holds no run, or one that recorded no whole reference.
    """
    contents = read_journal(folder)
    verdicts = {one.verdict for one in contents.findings if one.check == CHECK}
    if verdicts != {Verdict.PASS}:
        raise ConfigError(
            f"{folder} holds no reference that can be used",
            because="its check 'reference' did not pass" if verdicts else "it has no check 'reference'",
            next_step="record one: sparkwright verify --url URL --checks reference",
        )
    seen = [one for one in contents.measured.values() if one.cell.check == CHECK]
    answers, again = (
        tuple(o for o in seen if (o.cell.load.concurrency > 1) is many) for many in (False, True)
    )
    manifest = contents.manifest
    return Reference(answers, again, manifest.identity.get("main-model", ""), manifest.created)


def require_same_model(reference: Reference, model: str, where: str) -> None:
    """Refuse the server at *where* if a comparison with *reference* would be one of two models.

    Other tokenizers and other weights under one name are left to the check itself.

    Raises:
        EndpointError: its *model* has another name; of a path, the last part counts.
    """
    made_on, found = (name.rstrip("/").rpartition("/")[2] for name in (reference.model, model))
    if made_on and made_on != found:
        raise EndpointError(
            f"{where} cannot be compared with this reference",
            because=f"the reference is of {reference.model}, and the server serves {model}",
            next_step="serve the checkpoint that it was made of, under its name (--served-model-name), or"
            " record a reference of this one",
        )
