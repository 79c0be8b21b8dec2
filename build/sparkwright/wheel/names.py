"""A wheel's file name and the tags in it (PEP 427, PEP 425)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from sparkwright.base.errors import WheelError

_DIGEST_DIGITS = 8
_TAGS = re.compile(r"\w+(\.\w+)*", re.ASCII)
_COPY = re.compile(r" ?\(\d+\)(?=\.whl$)")  # what a browser adds to a name that is there already
# The local part of upstream's versions of untagged commits; a CUDA variant follows unless it is the main.
_OF_COMMIT = re.compile(r"g[0-9a-f]{7,40}(\.[a-z0-9]+)?")


@dataclass(frozen=True)
class WheelName:
    """The parts of a wheel's file name, escaped as in the name.

    Attributes:
        distribution: the project, such as ``vllm``.
        build: the build tag, usually empty.
        python: the Python tag, such as ``cp38``.
        abi: the ABI tag, such as ``abi3``.
        platform: the platform tag, such as ``manylinux_2_28_aarch64``.
    """

    distribution: str
    version: str
    build: str
    python: str
    abi: str
    platform: str

    @property
    def filename(self) -> str:
        """The file name."""
        parts = (self.distribution, self.version, self.build, self.python, self.abi, self.platform)
        return "-".join(part for part in parts if part) + ".whl"

    @property
    def dist_info(self) -> str:
        """The name of the folder with the wheel's metadata."""
        return f"{self.distribution}-{self.version}.dist-info"

    @property
    def tags(self) -> tuple[str, ...]:
        """Each single tag that the compressed set in the name stands for."""
        sets = (self.python.split("."), self.abi.split("."), self.platform.split("."))
        return tuple("-".join(tag) for tag in product(*sets))

    @property
    def machine(self) -> str:
        """The machine of the platform tag: ``aarch64``, ``x86_64``, or empty where it names neither."""
        found = re.search(r"(aarch64|x86_64)$", self.platform)
        return found.group(1) if found else ""

    def with_version(self, version: str) -> WheelName:
        """Return this name with another *version*.

        Raises:
            WheelError: it is not a PEP 440 version in its normal form.
        """
        try:
            normal = str(Version(version))
        except InvalidVersion:
            normal = ""
        if not normal or version != normal:
            raise WheelError(
                f"{version!r} cannot be a wheel's version",
                because=f"PEP 440 spells it {normal!r}" if normal else "PEP 440 does not allow it",
            )
        return replace(self, version=version)

    def with_platform(self, platform: str) -> WheelName:
        """Return this name with another *platform* tag, such as ``manylinux_2_34_aarch64``.

        Raises:
            WheelError: it is not one tag, or names another machine.
        """
        other = replace(self, platform=platform)
        if not re.fullmatch(r"\w+", platform) or other.machine != self.machine:
            raise WheelError(
                f"{platform!r} cannot be the wheel's platform", because=f"it is made for {self.platform}"
            )
        return other


def parse_name(filename: str) -> WheelName:
    """Return the parts of a wheel's *filename*.

    Raises:
        WheelError: it is not a wheel's name.
    """
    try:
        parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise _no_name(filename, str(error)) from error
    distribution, version, *build, python, abi, platform = filename.removesuffix(".whl").split("-")
    if odd := [tag for tag in (python, abi, platform) if not _TAGS.fullmatch(tag)]:
        raise _no_name(filename, f"no tag is written as {odd[0]!r}")
    return WheelName(distribution, version, "".join(build), python, abi, platform)


def _no_name(filename: str, because: str) -> WheelError:
    """Return the error for *filename*, which browsers may have spoilt."""
    whole = _COPY.sub("", unquote(filename))
    copied = "remove it if it is a browser's second copy, else " if _COPY.search(filename) else ""
    return WheelError(
        f"{filename} is not a wheel's file name",
        because=because,
        next_step=f"{copied}rename it to {whole}" if whole != filename else "",
    )


def local_version(
    release: str,
    patchset: str,
    digest: str,
    *,
    revision: int = 0,
    arch: str = "",
    card: str = "",
    compiled: int | None = None,
) -> str:
    """Return a build's PEP 440 version, such as ``0.24.0+spark.12.1a2b3c4d``.

    With kernels compiled for the usual card it is ``0.24.0+spark.12.sm121a.1a2b3c4d``, for another one
    ``0.24.0+spark.sm100a.12.5e6f7a8b``. Where some extensions are upstream's, the number of those compiled
    is in it: ``0.24.0+spark.12.mixed.5.sm121a.1a2b3c4d``, ``0.24.0+spark.mixed.sm100a.12.5.5e6f7a8b``.

    PEP 440 compares local versions part by part, numbers as numbers and above words. So a higher revision
    is newer whatever the digests are, a build of any is newer than one of a tool that did not count them
    (``+spark.1a2b3c4d``), and a wheel for another card is never preferred to one for the usual card. Of one
    revision, the wheel with kernels for the usual card comes after the one with upstream's: ``sm`` is
    above every hex digit, and the digest's part always has a letter. Between the two is ``mixed``, by the
    number of compiled extensions; for another card it comes before every wheel that is compiled as a whole.

    Upstream's version of an untagged commit, ``0.33.1.dev12+gabcdef123``, keeps its local part in front:
    ``0.33.1.dev12+gabcdef123.spark.0.1a2b3c4d`` is newer than upstream's wheel of that commit, older than
    any of a later commit, whose ``dev`` number is higher, and than the next release.

    Args:
        release: upstream's version, with no local part but that of an untagged commit.
        patchset: the patchset's name; characters that a local version cannot hold become a dot.
        digest: the build spec's digest in hex, of which eight digits are taken, and more up to the first
            letter if they are all decimal.
        revision: the patchset's; 0 for a working state.
        arch: the architecture of kernels for the usual card, such as ``sm121a``; empty for upstream's.
        card: the architecture of kernels compiled for another card, such as ``sm100a``.
        compiled: the number of extensions compiled for *arch* or *card* where others are upstream's; `None`
            where none is.

    Raises:
        WheelError: no version can be made of these.
    """
    name = re.sub(r"[^a-z0-9]+", ".", patchset.lower()).strip(".")
    try:
        base = Version(release)
        mixed, number = ([], []) if compiled is None else (["mixed"], [str(compiled)])
        marks = [
            name,
            *([*mixed, card] if card else []),
            str(revision),
            *(mixed if arch else []),
            *number,
            *([arch] if arch else []),
            _shortened(digest),
        ]
        version = Version(f"{release}{'.' if base.local else '+'}{'.'.join(marks)}")
    except InvalidVersion as error:
        raise WheelError(
            f"no version can be made of {release!r} and {patchset!r}", because=str(error)
        ) from error
    of_commit = base.local is None or _OF_COMMIT.fullmatch(base.local)
    if not of_commit or not name or not re.fullmatch(r"[0-9a-f]{8,}", digest):
        raise WheelError(
            f"no version can be made of {release!r} and {patchset!r}",
            because="it takes the version of a release or an untagged commit, a name with letters or digits, "
            "a hex digest",
        )
    return str(version)


def _shortened(digest: str) -> str:
    """Return the first digits of *digest*, with a letter among them if it has one."""
    short = digest[:_DIGEST_DIGITS]
    longer = re.match(r"[0-9]+[a-f]", digest)
    return longer[0] if short.isdecimal() and longer else short
