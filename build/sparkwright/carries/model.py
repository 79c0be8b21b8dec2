"""The typed model of ``carry.toml``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from sparkwright.base.config import Model

CARRY_FORMAT = 2
NAME_PATTERN = "^[a-z][a-z0-9]*(-[a-z0-9]+)*\\Z"

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.+-]*\Z")]
Commit = Annotated[str, Meta(pattern="^[0-9a-f]{40}\\Z")]
Runner = Literal["v1", "v2", "both", "none"]
SourceName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w-]*\Z")]
SourceRef = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]*\Z")]
Text = Annotated[str, Meta(min_length=1)]


class Upstream(Model, frozen=True):
    """An upstream pull request that a carry is related to.

    Attributes:
        state: what had become of it when it was last read.
        relation: how ours relates to it, in words.
        absorbs: whether merging it upstream makes the carry unnecessary. It has to be said: most are
            about a part of what a carry does, and a carry left out by mistake is a defect that returns.
    """

    pull: int
    author: Text
    state: Literal["open", "closed", "merged"]
    relation: Text
    absorbs: bool = False


class Superseded(Model, frozen=True):
    """Releases in which upstream has an answer of its own.

    Attributes:
        releases: PEP 440 specifier.
        by: what supersedes the carry there.
        rest: the carry that does there what upstream's answer leaves out, if it leaves out anything.
    """

    releases: Text
    by: Text
    because: Text
    rest: Name | None = None


class CarryEvidence(Model, frozen=True):
    """The evidence for a carry: what was shown, apart from what is only reported.

    Attributes:
        level: the strongest place where the effect was shown by us.
        claimed: what others report and this project has not reproduced.
    """

    level: Literal["claimed", "cpu", "gpu", "gb10"]
    demonstrated: tuple[Text, ...]
    claimed: tuple[Text, ...]


class Revision(Model, frozen=True):
    """A carry's content, written against one exact base.

    The base is a tree of upstream's own, named by `sdist_sha256`, or, for a carry that has a
    `source`, that source's tree at `source_ref`. One of the two is given. The patch names the
    blobs themselves, so neither is taken on trust.

    Attributes:
        release: the upstream release that it was written against; it puts revisions in order.
        patch: name of the patch file in the carry's folder.
        sdist_sha256: digest of that release's sdist, where the base blobs come from.
        source_ref: the commit or tag of the carry's source that the release's lock names.
        runner: the model runner that it reaches, where that is not the carry's.
    """

    release: Text
    patch: FileName
    sdist_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")] | None = None
    source_ref: SourceRef | None = None
    runner: Runner | None = None


class PullRequest(Model, frozen=True, omit_defaults=True):
    """An upstream pull request that is itself the content.

    Attributes:
        repository: git address.
        number: the pull request's number there.
        head: its pinned head commit.
        base: the commit where it left the branch that it is against.
        branch: that branch, a tag or a commit, if it is not the repository's default branch.
    """

    repository: Text
    number: int
    head: Commit
    base: Commit
    branch: str = ""


class LaterProbe(Model, frozen=True):
    """Another probe for later releases, where the names that the first one imports have moved.

    Attributes:
        release: the first release that it is for; it holds until that of the next entry.
        file: the probe, in the carry's folder.
        helpers: like those of `ProbeSpec`; the same as there by default, as are the others.
        seconds: wall-clock limit of one run.
        memory_mib: limit of resident memory of one run, in MiB.
        triton: ``interpret`` runs Triton kernels on CPU tensors.
        reads: patterns of files that its verdict hangs on besides those that the carry changes.
    """

    release: Text
    file: FileName
    helpers: tuple[FileName, ...] | None = None
    seconds: int | None = None
    memory_mib: int | None = None
    triton: Literal["off", "interpret"] | None = None
    reads: tuple[Text, ...] | None = None


class ProbeSpec(Model, frozen=True):
    """Settings of a carry's probe.

    Attributes:
        file: the probe, in the carry's folder.
        helpers: modules in the carry's folder that the probe may import.
        seconds: wall-clock limit of one run.
        memory_mib: limit of resident memory of one run, in MiB.
        triton: ``interpret`` runs Triton kernels on CPU tensors.
        later: other probes for later releases.
        needs: what it wants from the outside, such as ``toolchain`` to run CMake with. Such a probe
            runs without torch and may import ``buildkit``.
        reads: patterns of files that its verdict hangs on besides those that the carry changes.
    """

    file: FileName
    seconds: int = 600
    memory_mib: int = 6144
    triton: Literal["off", "interpret"] = "off"
    needs: tuple[Literal["toolchain"], ...] = ()
    reads: tuple[Text, ...] = ()
    helpers: tuple[FileName, ...] = ()
    later: tuple[LaterProbe, ...] = ()


class CarrySpec(Model, frozen=True):
    """All of ``carry.toml``; ``docs/formats.md`` describes each key.

    Attributes:
        source: the lock's name of the dependency whose tree the carry changes; vLLM's own by default.
        drop_when: the condition for dropping the carry.
        later_releases: findings on releases after the one that the carry was written against, in Markdown.
    """

    format: int
    name: Name
    title: Text
    kind: Literal["own", "pull"]
    scope: Literal["runtime", "build"]
    runner: Runner
    requires: tuple[Name, ...]
    why: Text
    symptom: Text
    evidence: CarryEvidence
    drop_when: Text
    later_releases: Text = ""
    source: SourceName | None = None
    upstream: tuple[Upstream, ...] = ()
    superseded: tuple[Superseded, ...] = ()
    revision: tuple[Revision, ...] = ()
    pull: PullRequest | None = None
    probe: ProbeSpec | None = None
