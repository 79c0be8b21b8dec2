"""ccache before the compilers: what another store has compiled, or one that was emptied, it does not again.

Our own unit cache comes first and asks more. ccache is asked about what is left, and told as much as it
needs to be as careful: what the compiler is, and the names of all files that it might find. Its own way of
looking up (the manual's "direct mode", by the files that the compiler read) does not notice a new header
that takes another's place; with these names in its key it does.

An object is the same with it and without, so it is part of no key. sccache is not offered: it compiles in
a server process that outlives the build, whose memory nobody here could measure or take back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sparkwright.canonical import digest_of
from sparkwright.errors import ConfigError, SparkwrightError, ToolError
from sparkwright.process import run, which

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "LOG_VARIABLE",
    "Launcher",
    "LauncherChoice",
    "choose_launcher",
    "find_launcher",
    "state_of",
    "was_found",
]

LOG_VARIABLE = "CCACHE_STATSLOG"
"""Names the file that is told what became of a call; see `was_found`."""

LauncherChoice = Literal["auto", "ccache", "none"]

# Settings that keep to the user's: compilers get a home of their own, where ccache would find none of them.
_KEPT = {"cache_dir": "CCACHE_DIR", "max_size": "CCACHE_MAXSIZE", "max_files": "CCACHE_MAXFILES"}
_MAPPED = "-ffile-prefix-map="
_OURS = {
    # Found by what the compiler said that it read: nvcc preprocesses a unit for each of its passes.
    "CCACHE_DEPEND": "1",
    # The place of the work folder is in these options and, by them, in no object.
    "CCACHE_IGNOREOPTIONS": f"{_MAPPED}* -Xcompiler={_MAPPED}*",
    "CCACHE_NOHASHDIR": "1",
    "CCACHE_IGNOREHEADERS": "",
    # Sources were written a moment ago, by us, and nobody else knows the folder.
    "CCACHE_SLOPPINESS": "include_file_mtime,include_file_ctime",
}
_HITS = frozenset({"direct_cache_hit", "preprocessed_cache_hit"})
_RESULTS = _HITS | {"cache_miss"}


@dataclass(frozen=True)
class Launcher:
    """ccache, with the settings of who builds.

    Attributes:
        program: where it is.
        version: its version.
        settings: variables that keep to the user's folder and its limits.
    """

    program: Path
    version: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Where it keeps what was compiled."""
        return self.settings.get("CCACHE_DIR", "")

    def environment(self, work: Path, state: str) -> dict[str, str]:
        """Variables for all compilers that work in the folder *work*.

        Args:
            work: the work folder; see `sparkwright.native`.
            state: as from `state_of`.
        """
        return {
            **self.settings,
            **_OURS,
            "CCACHE_BASEDIR": str(work),
            "CCACHE_COMPILERCHECK": f"string:{state}",
        }


def state_of(toolchain_key: str, paths: Iterable[str]) -> str:
    """Digest of what compiles, and of the *paths* of all files that it might look for."""
    return digest_of([toolchain_key, sorted(paths)])


def was_found(log: Path) -> bool | None:
    """Whether a call was answered from the cache, by its *log*; `None` where that does not say."""
    try:
        said = _RESULTS.intersection(log.read_text(encoding="utf-8", errors="replace").splitlines())
    except FileNotFoundError:
        return None
    return bool(said & _HITS) if said else None


def choose_launcher(choice: LauncherChoice, *, isolate: bool) -> Launcher | None:
    """What compilers are started through, or `None`.

    Args:
        choice: what is asked for; ``auto`` takes ccache where it is installed.
        isolate: whether the build is kept off the network. Then nothing is taken from a cache that may be
            shared with others, and what code that nobody has read had compiled goes into none.

    Raises:
        ConfigError: ccache is asked for, and isolation too.
        ToolError: ccache is asked for, and absent or broken.
    """
    if choice == "none" or (isolate and choice == "auto"):
        return None
    if isolate:
        raise ConfigError(
            "an isolated build takes nothing from ccache and puts nothing there",
            because="its cache may be shared with builds that trust it",
            next_step="leave out --launcher ccache, or --isolate",
        )
    try:
        return find_launcher()
    except ToolError:
        if choice == "auto":
            return None
        raise


def find_launcher() -> Launcher:
    """The ccache that is installed here, with the user's settings.

    Raises:
        ToolError: it is not installed, or does not answer.
    """
    program = Path(which("ccache", hint="install ccache, or leave out --launcher ccache"))
    try:
        version = run([program, "--version"]).text.split("\n", 1)[0].rpartition(" ")[2]
        asked = {setting: run([program, "--get-config", setting]).text.strip() for setting in _KEPT}
    except SparkwrightError as error:
        raise ToolError(
            "ccache does not answer", because=str(error), next_step="mend it, or build with --launcher none"
        ) from error
    return Launcher(program, version, {_KEPT[setting]: value for setting, value in asked.items()})
