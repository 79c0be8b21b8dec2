"""A wheel that is to be promoted, with everything that is published beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import PublishError
from sparkwright.base.events import warn
from sparkwright.lock.runtime import beside, parse_runtime
from sparkwright.publish.evidence import AttachedEvidence, require_evidence, stated_series
from sparkwright.publish.index import describe, runtime_page, runtimes_in
from sparkwright.publish.pages import PublishedFile
from sparkwright.publish.policy import ChannelPolicy


@dataclass(frozen=True)
class Candidate:
    """A wheel that a channel's policy accepts.

    Attributes:
        file: what it is.
        evidence: by which it is accepted.
        runtime: its locked runtime; empty for none.
    """

    wheel: Path
    file: PublishedFile
    evidence: tuple[AttachedEvidence, ...] = ()
    runtime: bytes = b""


def gather(wheel: Path, channel: str, policy: ChannelPolicy, evidence: Path, patchsets: Path) -> Candidate:
    """Return *wheel* with its evidence and runtime, as *policy* requires.

    Args:
        wheel: the wheel; a runtime that lies beside it is taken.
        channel: the channel, for errors.
        policy: the channel's.
        evidence: the folder with the evidence of all wheels.
        patchsets: the folder with the locked runtimes of series.

    Raises:
        MissingEvidenceError: evidence is missing; the error names the command for each kind.
        PublishError: the runtime beside the wheel is of another one, or the wheel cannot be published.
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
    return Candidate(wheel, file, found, runtime)


def _runtime(wheel: Path, file: PublishedFile, patchsets: Path) -> bytes:
    """Return the locked runtime of a wheel: the file beside it, else that of its series."""
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
