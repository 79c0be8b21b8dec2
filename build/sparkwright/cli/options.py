"""Options that many commands share, and what they come to."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from sparkwright.pipeline.job import Compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkwright.pipeline.choose import Kernels

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_PATCHSET = "spark"
DEFAULT_PLATFORM = "aarch64"


@dataclass(frozen=True)
class TargetOptions:
    """Which wheel a command is about.

    Attributes:
        patchset: name of the patchset.
        platform: which machine the wheel is for.
        source: where upstream's tree comes from.
        kernels: where compiled code comes from.
        arch: what it is compiled for; the lock says so by default.
    """

    patchset: str = DEFAULT_PATCHSET
    platform: str = DEFAULT_PLATFORM
    source: str = "index"
    kernels: Kernels = "upstream"
    arch: str = ""


_TREE = (
    click.option("--patchset", default=DEFAULT_PATCHSET, show_default=True, help="Which patchset."),
    click.option("--platform", default=DEFAULT_PLATFORM, show_default=True, help="Which machine."),
    click.option(
        "--source",
        default="index",
        show_default=True,
        help="Where upstream's tree comes from: index, git, a repository's address, or a folder.",
    ),
)
_KERNELS = (
    click.option(
        "--kernels",
        type=click.Choice(["auto", "upstream", "native"]),
        default="auto",
        show_default=True,
        envvar="SPARKWRIGHT_KERNELS",
        help="Upstream's own kernels, or native ones, compiled for one card; auto: native on that card.",
    ),
    click.option("--arch", default="", help="What native kernels are compiled for; 12.1a and the like."),
)
_RESULT = (
    click.option(
        "--require-native",
        is_flag=True,
        help="With native kernels: an extension that cannot be compiled is an error, not upstream's.",
    ),
    click.option(
        "--full", is_flag=True, help="With native kernels: keep binaries that are of no use on the card."
    ),
)
_COMPILING = (
    click.option(
        "--jobs", "-j", type=click.IntRange(min=1), help="Most compilers at once; by cores and memory."
    ),
    click.option("--keep-going", "-k", is_flag=True, help="Go on with other units when one fails."),
    click.option(
        "--isolate",
        is_flag=True,
        envvar="SPARKWRIGHT_ISOLATE",
        help="Take the network away from CMake and the compilers.",
    ),
    click.option(
        "--cuda",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        envvar="SPARKWRIGHT_CUDA",
        help="An installed CUDA toolkit, instead of the lock's packages.",
    ),
)


def compile_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add how kernels are compiled, and what is made of them.

    *function* gets the first as `Compiling`, and ``require_native`` and ``full``.
    """
    return _bundled(function, (*_RESULT, *_COMPILING), Compiling, "compiling")


def tree_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add ``--patchset``, ``--platform`` and ``--source``; *function* gets them as `TargetOptions`."""
    return _bundled(function, _TREE, TargetOptions, "wanted")


def job_options(function: Callable[..., R]) -> Callable[..., R]:
    """Like `tree_options`, with ``--kernels`` and ``--arch``."""
    return _bundled(function, (*_TREE, *_KERNELS), TargetOptions, "wanted")


def _bundled(
    function: Callable[..., R], options: tuple[Callable[[Any], Any], ...], bundle: type[Any], name: str
) -> Callable[..., R]:
    """*function* with *options*, of which it gets those that *bundle* has as one argument called *name*."""
    fields = [field.name for field in dataclasses.fields(bundle)]

    @functools.wraps(function)
    def wrapper(**arguments: Any) -> R:
        chosen = bundle(**{field: arguments.pop(field) for field in fields if field in arguments})
        return function(**{name: chosen}, **arguments)

    decorated: Callable[..., R] = wrapper
    for option in reversed(options):
        decorated = option(decorated)
    return decorated
