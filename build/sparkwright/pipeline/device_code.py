"""Extensions that are compiled to no code for the card itself.

Upstream's project takes the architecture that is asked for, and the projects inside it narrow it by lists of
their own: FlashAttention 2 of 0.24.0 is compiled for 8.0 and PTX where 9.0a is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkwright.native.model import Extension


def not_native(code: Mapping[str, int], arch: str) -> str:
    """Return how a card runs an extension that has no code for the card itself.

    Args:
        code: number of units by device code, such as ``sm_80``.
        arch: the card, such as ``9.0a``.

    Returns:
        One sentence; empty for an extension with code for the card, and for one without device code.
    """
    from sparkwright.native.device_code import KernelClass, best_class

    best = best_class(code, arch)
    if not code or best is KernelClass.NATIVE:
        return ""
    consequence = {
        KernelClass.FAMILY: "the card runs code for its family",
        KernelClass.PTX: "the driver compiles it from PTX when it is first used",
        KernelClass.NONE: "nothing of it runs on the card",
    }[best]
    return f"upstream's build makes {', '.join(sorted(code))} of it and nothing for {arch}: {consequence}"


def foreign_extensions(extensions: Mapping[str, Extension], arch: str) -> dict[str, str]:
    """Return, by name, how the card *arch* runs each extension that has no code for the card itself."""
    told = {name: not_native(one.arches, arch) for name, one in extensions.items()}
    return {name: why for name, why in told.items() if why}
