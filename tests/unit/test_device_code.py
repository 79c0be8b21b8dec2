"""Extensions without code for the card itself are named, with how the card runs them."""

import pytest

from sparkwright.native.model import Extension
from sparkwright.pipeline.kernels import foreign_extensions, not_native


def extension(**arches: int) -> Extension:
    return Extension(target="_C", key="k", sha256="0" * 64, size=1, arches=arches)


@pytest.mark.parametrize(
    ("code", "arch", "consequence"),
    [
        ({"sm_80": 52, "compute_80": 52}, "9.0a", "compiles it from PTX when it is first used"),
        ({"sm_80": 52, "compute_80": 52}, "12.1a", "compiles it from PTX when it is first used"),
        ({"sm_120f": 4}, "12.1a", "the card runs code for its family"),
        ({"sm_90a": 4}, "12.1a", "nothing of it runs on the card"),
    ],
)
def test_code_for_another_architecture(code: dict[str, int], arch: str, consequence: str) -> None:
    told = not_native(code, arch)
    assert told.endswith(consequence)
    assert f"makes {', '.join(sorted(code))} of it and nothing for {arch}" in told


@pytest.mark.parametrize(
    ("code", "arch"),
    [
        ({"sm_121a": 52}, "12.1a"),
        ({"sm_121a": 70, "sm_89": 1, "compute_89": 1}, "12.1a"),
        ({"sm_90": 3}, "9.0a"),
        ({}, "12.1a"),
    ],
)
def test_code_for_the_card_and_none_at_all(code: dict[str, int], arch: str) -> None:
    assert not_native(code, arch) == ""


def test_only_extensions_without_code_for_the_card_are_named() -> None:
    extensions = {"fa2": extension(sm_80=52, compute_80=52), "ours": extension(sm_90a=8), "host": extension()}
    assert list(foreign_extensions(extensions, "9.0a")) == ["fa2"]
