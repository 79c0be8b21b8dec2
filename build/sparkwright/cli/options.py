"""Options that many commands share, and what they come to."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkwright.plan.choose import Kernels

__all__ = ["DEFAULT_PATCHSET", "DEFAULT_PLATFORM", "Wanted", "job_options", "tree_options"]

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_PATCHSET = "spark"
DEFAULT_PLATFORM = "aarch64"


@dataclass(frozen=True)
class Wanted:
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


def tree_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add ``--patchset``, ``--platform`` and ``--source``; *function* gets them as `Wanted`."""
    return _bundled(function, _TREE)


def job_options(function: Callable[..., R]) -> Callable[..., R]:
    """Like `tree_options`, with ``--kernels`` and ``--arch``."""
    return _bundled(function, (*_TREE, *_KERNELS))


def _bundled(function: Callable[..., R], options: tuple[Callable[[Any], Any], ...]) -> Callable[..., R]:
    fields = Wanted.__dataclass_fields__

    @functools.wraps(function)
    def wrapper(**arguments: Any) -> R:
        wanted = Wanted(**{name: arguments.pop(name) for name in fields if name in arguments})
        return function(wanted=wanted, **arguments)

    decorated: Callable[..., R] = wrapper
    for option in reversed(options):
        decorated = option(decorated)
    return decorated
