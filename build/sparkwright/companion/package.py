"""The package ``flashinfer_jit_cache``: the two forms in which FlashInfer asks an installed one for kernels.

FlashInfer up to 0.6 asks for a folder, later ones for providers with architectures and names of modules.
Either looks for ``NAME/NAME.so`` there, and refuses a package whose version does not start with its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.base.digests import digest_of
from sparkwright.native.model import Target

PROJECT = "flashinfer-jit-cache"
PACKAGE = "flashinfer_jit_cache"
FOLDER = f"{PACKAGE}/kernels"
_DIGEST_DIGITS = 8

_TEXT = '''\
"""FlashInfer's kernels, compiled ahead of time for {arch}; FlashInfer finds them by this package's name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__version__ = "{version}"

_FOLDER = Path(__file__).resolve().parent / "kernels"
_MODULES = (
{modules})


@dataclass(frozen=True)
class JitCacheProvider:
    """A set of finished modules for some architectures."""

    provider_id: str
    distribution: str
    version: str
    jit_cache_dir: str
    cuda_architectures: tuple[str, ...]
    modules: tuple[str, ...]


def get_jit_cache_dir() -> str:
    """Return the folder of the modules."""
    return str(_FOLDER)


def get_jit_cache_providers() -> tuple[JitCacheProvider, ...]:
    """Return this package as the only provider."""
    return (
        JitCacheProvider(
            provider_id="{provider}",
            distribution="{project}",
            version=__version__,
            jit_cache_dir=str(_FOLDER),
            cuda_architectures=("{arch}",),
            modules=_MODULES,
        ),
    )
'''


def is_companion(filename: str) -> bool:
    """Tell if a wheel of that name is a companion."""
    return filename.startswith(f"{PACKAGE}-")


def architecture_name(target: Target) -> str:
    """Return the target's architecture as FlashInfer writes it: ``sm121a``."""
    return target.sm.replace("_", "")


def companion_version(flashinfer: str, cuda: str, target: Target, record: Mapping[str, Any]) -> str:
    """Return the version of a companion: FlashInfer's, with CUDA, architecture and content after the plus.

    Args:
        flashinfer: FlashInfer's version.
        cuda: the toolkit's version, ``major.minor``.
        target: the machine and card.
        record: what it holds and was made from: another record gives another version, since a published file
            never changes.
    """
    content = digest_of(record)
    # A letter in front: a part of digits alone would be a number to PEP 440, and lose its zeros.
    return f"{flashinfer}+cu{cuda.replace('.', '')}.{architecture_name(target)}.k{content[:_DIGEST_DIGITS]}"


def package_text(version: str, target: Target, names: Sequence[str]) -> bytes:
    """Return the package's only Python file."""
    arch = architecture_name(target)
    listed = "".join(f'    "{name}",\n' for name in sorted(names))
    return _TEXT.format(
        arch=arch, version=version, modules=listed, provider=f"sparkwright-{arch}", project=PROJECT
    ).encode()


def member_of(name: str) -> str:
    """Return the member of the wheel for the module *name*."""
    return f"{FOLDER}/{name}/{name}.so"
