"""A wheel that is to be promoted, with everything that is published beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import PublishError
from sparkwright.base.events import warn
from sparkwright.lock.runtime import beside, parse_runtime
from sparkwright.publish.evidence import FoundEvidence, require_evidence, stated_series
from sparkwright.publish.index import describe
from sparkwright.publish.pages import PublishedFile
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.provenance import SUFFIX, provenance_of
from sparkwright.publish.runtimes import runtime_page, runtimes_in


@dataclass(frozen=True)
class Candidate:
    """A wheel that a channel's policy accepts.

    Attributes:
        file: what it is.
        evidence: by which it is accepted.
        provenance: an in-toto statement about it; empty for none.
        runtime: its locked runtime; empty for none.
    """

    wheel: Path
    file: PublishedFile
    evidence: tuple[FoundEvidence, ...] = ()
    provenance: bytes = b""
    runtime: bytes = b""


def gather(wheel: Path, channel: str, policy: ChannelPolicy, evidence: Path, patchsets: Path) -> Candidate:
    """Return *wheel* with its evidence, provenance and runtime, as *policy* requires.

    Args:
        wheel: the wheel; a statement or a runtime that lies beside it is taken.
        channel: the channel, for errors.
        policy: the channel's.
        evidence: the folder with the evidence of all wheels.
        patchsets: the folder with the locked runtimes of series.

    Raises:
        MissingEvidenceError: evidence is missing; the error names the command for each kind.
        PublishError: what lies beside the wheel is not about it, or the wheel cannot be published.
        ConfigError: a runtime does not follow its format.
    """
    file, _ = describe(wheel)
    runtime = _runtime(wheel, file, patchsets)
    digest = parse_runtime(runtime.decode(), f"the runtime of {wheel.name}").digest if runtime else ""
    found = require_evidence(wheel, file.sha256, channel, policy, evidence, runtime=digest)
    if not runtime and file.project == "vllm":
        warn(
            f"{wheel.name} is promoted without a locked runtime: outside a checkout it is served unlocked",
            next_step=f"sparkwright lock runtime --series {stated_series(wheel)}, then promote it again",
        )
    return Candidate(wheel, file, found, _provenance(wheel, file), runtime)


def _provenance(wheel: Path, file: PublishedFile) -> bytes:
    """Return the statement beside *wheel*, which may name its builder, or the one that its record gives.

    Raises:
        PublishError: it is no in-toto statement, or not about this wheel alone.
    """
    path = wheel.with_name(f"{wheel.name}{SUFFIX}")
    if not path.is_file():
        return provenance_of(wheel, sha256=file.sha256)
    data = path.read_bytes()
    try:
        about = [one["digest"]["sha256"] for one in json.loads(data)["subject"]]
    except (ValueError, TypeError, KeyError) as error:
        raise PublishError(f"{path} is no in-toto statement", because=repr(error)) from error
    if about != [file.sha256]:
        raise PublishError(
            f"{path} is not about the wheel beside it",
            because=f"the wheel's SHA-256 is {file.sha256}, its subject's "
            f"{', '.join(map(str, about)) or 'none'}",
            next_step="remove it: without one, the statement is made of the wheel",
        )
    return data


def _runtime(wheel: Path, file: PublishedFile, patchsets: Path) -> bytes:
    """Return the locked runtime that a wheel is promoted with: the file beside it, else that of its series.

    Raises:
        PublishError: the file beside the wheel is of another wheel.
    """
    path = beside(wheel)
    if not path.is_file():
        page = runtime_page(file, runtimes_in(patchsets))
        return page[1] if page else b""
    data = path.read_bytes()
    own = [one.hashes for one in parse_runtime(data.decode(), str(path)).packages if one.name == file.project]
    if own != [(file.sha256,)]:
        raise PublishError(
            f"{path.name} is not the runtime of the wheel beside it",
            because=f"it does not name SHA-256 {file.sha256}",
            next_step="write it again: sparkwright publish",
        )
    return data
