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

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        """Give the class its exit code; its base's without one."""
        if code is not None:
            cls.exit_code = code

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


class ConfigError(SparkwrightError, code=10):
    """A file of this project does not match its format, or an option cannot be used here."""


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


class LockMismatchError(SparkwrightError, code=10):
    """The lock and the release disagree."""


class RefError(SparkwrightError, code=10):
    """A ref, commit id or repository address is not safe to pass to git."""


class IncompatibleOptionsError(SparkwrightError, code=10):
    """A recipe has options that do not work together, or that a release does not have."""


class EndpointError(SparkwrightError, code=10):
    """The endpoint cannot be verified: wrong address, key, model or kind of server."""


class ToolError(SparkwrightError, code=10):
    """A required program is missing or too old."""


class ProcessError(SparkwrightError, code=20):
    """A program that was started failed without a more specific error."""


class EnvironmentSetupError(SparkwrightError, code=20):
    """The Python environment for probes could not be made."""


class FetchError(SparkwrightError, code=20):
    """Something could not be fetched."""


class NotInStoreError(SparkwrightError, code=20):
    """The network is off and the store lacks a needed file."""


class MissingSourceError(SparkwrightError, code=20):
    """A source of native kernels cannot be fetched, and native kernels were required."""


class UploadError(SparkwrightError, code=20):
    """A target of wheels cannot be reached, read or written."""


class ClusterError(SparkwrightError, code=20):
    """Other machines cannot be reached, cannot compile for this one, or were lost."""


class DigestError(SparkwrightError, code=21):
    """A file does not have the digest that the lock names."""


class ArchiveError(SparkwrightError, code=21):
    """An archive is damaged, or would write outside its folder."""


class TamperedError(SparkwrightError, code=21):
    """Published bytes are not those that were signed or promised by their digest."""


class SignatureError(SparkwrightError, code=21):
    """A signed statement is damaged, has no valid signature, or cannot be signed."""


class UntrustedKeyError(SparkwrightError, code=21):
    """A signature is by a key that is unknown, revoked, out of its time, or not the one of that address."""


class ExpiredChannelError(SparkwrightError, code=21):
    """A channel's signed statement is past its time."""


class ReplayedChannelError(SparkwrightError, code=21):
    """A channel is older than one that was seen before: a mirror is stale, or was rolled back."""


class ReplayedReportError(SparkwrightError, code=21):
    """An owner's report is of a run that another report in the table is of."""


class KnownReportError(SparkwrightError, code=10):
    """An owner's report is in the table already."""


class PatchError(SparkwrightError, code=30):
    """A change does not fit the blobs that it names, leaves the tree, or is not what was pinned."""


class CarryConflictError(SparkwrightError, code=30):
    """One or more carries could not be merged."""

    refused = False
    """Whether one was refused, which damaged objects cause too; where all conflict, git read all of them."""


class ProofError(SparkwrightError, code=30):
    """A probe could not run, or found a defect in the merged tree."""


class UnprovedError(SparkwrightError, code=30):
    """A carry lacks a proof that it is needed and works, or upstream contains it and has its defect still."""


class NativeInputsError(SparkwrightError, code=50):
    """Upstream's binaries may not be used, because a carry changes their sources."""


class WheelError(SparkwrightError, code=50):
    """A wheel is malformed, or cannot be assembled."""


class NativeBuildError(SparkwrightError, code=50):
    """The kernels could not be configured or linked."""


class CompileError(SparkwrightError, code=50):
    """A compiler failed on a unit of native code, or wrote no object for it."""


class BinaryError(SparkwrightError, code=50):
    """A compiled file is damaged, or of an unknown kind."""


class AuditError(SparkwrightError, code=50):
    """A wheel failed its audit."""


class PublishError(SparkwrightError, code=50):
    """The index could not be written."""


class LostRaceError(PublishError):
    """Another publisher changed the channel first, or a prune is removing what is to be published."""


class MissingEvidenceError(PublishError):
    """A wheel lacks evidence that the channel's policy requires."""


class StorageError(SparkwrightError, code=70):
    """The disk is full, read-only or damaged."""


class BusyError(SparkwrightError, code=70):
    """Another run holds a lock that this one needs."""


class LostFileError(StorageError):
    """A cached file was evicted while in use."""


class NotEnoughMemoryError(SparkwrightError, code=70):
    """This machine has too little memory for the request."""


class PreflightError(SparkwrightError, code=76):
    """A server would not start, or the host would not survive it."""


class ServerError(SparkwrightError, code=77):
    """The server under test could not be started, or exited."""


class ServerEndedError(SparkwrightError, code=77):
    """A served model's engine ended by itself, or was found wedged."""


class VerdictError(SparkwrightError, code=83):
    """Verification failed: the server has a defect."""


class UndecidedError(SparkwrightError, code=84):
    """Verification was inconclusive: too few or unreliable observations."""


class RehearsalError(SparkwrightError, code=84):
    """A rehearsal could not be made: its wheel, model or environment is missing."""


class BisectionError(SparkwrightError, code=84):
    """A bisection names no change: its ends cannot be told apart or made, or several changes are left."""


class NeedsPersonError(SparkwrightError, code=95):
    """Following upstream found something that a person has to decide."""
