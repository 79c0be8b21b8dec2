"""Every failure that a user can see: what failed, its cause, and the next step.

An exit code says who has to act: the user, the network, another program, a carry, a server. The class is the
kind of failure, which ``--json`` names. A test compares ``docs/commands.md`` with this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class SparkwrightError(Exception):
    """A failure with a cause and a next step.

    Args:
        what: the failure, as one clause without a full stop.
        because: the cause, as far as it is known.
        next_step: the action that the user can take.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, because: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.because = because
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.what}, because {self.because}" if self.because else self.what


def error_class(name: str, otherwise: type[SparkwrightError]) -> type[SparkwrightError]:
    """Return the class of errors called *name*, which another machine sent; *otherwise* if there is none."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, SparkwrightError) else otherwise


class ConfigError(SparkwrightError):
    """A file of this project does not match its format, or an option cannot be used here."""

    exit_code = 10


class NewerFormatError(ConfigError):
    """A file was written by a newer sparkwright than this one."""


class UnknownNameError(ConfigError):
    """A carry, patchset or command argument names something that does not exist."""


def unknown_name(kind: str, name: str, known: Sequence[str], next_step: str = "") -> UnknownNameError:
    """Return an error for the *name* of a *kind* that suggests the nearest ones; *next_step* without any."""
    import difflib  # not for --help, which is as fast as its imports

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    if close:
        next_step = f"did you mean {' or '.join(map(repr, close))}?"
    return UnknownNameError(
        f"there is no {kind} {name!r}", next_step=next_step or f"known: {', '.join(known) or 'none'}"
    )


class DependencyOrderError(ConfigError):
    """Requirements between carries form a cycle, are missing, or are out of order."""


class LockMismatchError(SparkwrightError):
    """The lock and the release disagree."""

    exit_code = 10


class RefError(SparkwrightError):
    """A ref, commit id or repository address is not safe to pass to git."""

    exit_code = 10


class IncompatibleOptionsError(SparkwrightError):
    """A recipe has options that do not work together, or that a release does not have."""

    exit_code = 10


class EndpointError(SparkwrightError):
    """The endpoint cannot be verified: wrong address, key, model or kind of server."""

    exit_code = 10


class ToolError(SparkwrightError):
    """A required program is missing or too old."""

    exit_code = 10


class ProcessError(SparkwrightError):
    """A program that was started failed without a more specific error."""

    exit_code = 20


class EnvironmentSetupError(SparkwrightError):
    """The Python environment for probes could not be made."""

    exit_code = 20


class FetchError(SparkwrightError):
    """Something could not be fetched."""

    exit_code = 20


class NotInStoreError(SparkwrightError):
    """The network is off and the store lacks a needed file."""

    exit_code = 20


class MissingSourceError(SparkwrightError):
    """A source of native kernels cannot be fetched, and native kernels were required."""

    exit_code = 20


class UploadError(SparkwrightError):
    """A target of wheels cannot be reached, read or written."""

    exit_code = 20


class ClusterError(SparkwrightError):
    """Other machines cannot be reached, cannot compile for this one, or were lost."""

    exit_code = 20


class DigestError(SparkwrightError):
    """A file does not have the digest that the lock names."""

    exit_code = 21


class ArchiveError(SparkwrightError):
    """An archive is damaged, or would write outside its folder."""

    exit_code = 21


class TamperedError(SparkwrightError):
    """Published bytes are not those that were signed or promised by their digest."""

    exit_code = 21


class SignatureError(SparkwrightError):
    """A signed statement is damaged, has no valid signature, or cannot be signed."""

    exit_code = 21


class UntrustedKeyError(SparkwrightError):
    """A signature is by a key that is unknown, revoked, out of its time, or not the one of that address."""

    exit_code = 21


class ExpiredChannelError(SparkwrightError):
    """A channel's signed statement is past its time."""

    exit_code = 21


class ReplayedChannelError(SparkwrightError):
    """A channel is older than one that was seen before: a mirror is stale, or was rolled back."""

    exit_code = 21


class PatchError(SparkwrightError):
    """A change does not fit the blobs that it names, leaves the tree, or is not what was pinned."""

    exit_code = 30


class CarryConflictError(SparkwrightError):
    """One or more carries could not be merged."""

    exit_code = 30
    refused = False
    """Whether one was refused, which damaged objects cause too; where all conflict, git read all of them."""


class ProofError(SparkwrightError):
    """A probe could not run, or found a defect in the merged tree."""

    exit_code = 30


class UnprovedError(SparkwrightError):
    """A carry lacks a proof that it is needed and works, or upstream contains it and has its defect still."""

    exit_code = 30


class NativeInputsError(SparkwrightError):
    """Upstream's binaries may not be used, because a carry changes their sources."""

    exit_code = 50


class WheelError(SparkwrightError):
    """A wheel is malformed, or cannot be assembled."""

    exit_code = 50


class NativeBuildError(SparkwrightError):
    """The kernels could not be configured or linked."""

    exit_code = 50


class CompileError(SparkwrightError):
    """A compiler failed on a unit of native code, or wrote no object for it."""

    exit_code = 50


class BinaryError(SparkwrightError):
    """A compiled file is damaged, or of an unknown kind."""

    exit_code = 50


class AuditError(SparkwrightError):
    """A wheel failed its audit."""

    exit_code = 50


class PublishError(SparkwrightError):
    """The index could not be written."""

    exit_code = 50


class LostRaceError(PublishError):
    """Another publisher changed the channel first, or a prune is removing what is to be published."""


class MissingEvidenceError(PublishError):
    """A wheel lacks evidence that the channel's policy requires."""


class StorageError(SparkwrightError):
    """The disk is full, read-only or damaged."""

    exit_code = 70


class BusyError(SparkwrightError):
    """Another run holds a lock that this one needs."""

    exit_code = 70


class LostFileError(StorageError):
    """A cached file was evicted while in use."""


class NotEnoughMemoryError(SparkwrightError):
    """This machine has too little memory for the request."""

    exit_code = 70


class PreflightError(SparkwrightError):
    """A server would not start, or the host would not survive it."""

    exit_code = 76


class ServerError(SparkwrightError):
    """The server under test could not be started, or exited."""

    exit_code = 77


class ServerEndedError(SparkwrightError):
    """A served model's engine ended by itself, or was found wedged."""

    exit_code = 77


class VerdictError(SparkwrightError):
    """Verification failed: the server has a defect."""

    exit_code = 83


class UndecidedError(SparkwrightError):
    """Verification was inconclusive: too few or unreliable observations."""

    exit_code = 84


class RehearsalError(SparkwrightError):
    """A rehearsal could not be made: its wheel, model or environment is missing."""

    exit_code = 84


class BisectionError(SparkwrightError):
    """A bisection names no change: its ends cannot be told apart or made, or several changes are left."""

    exit_code = 84


class NeedsPersonError(SparkwrightError):
    """Following upstream found something that a person has to decide."""

    exit_code = 95
