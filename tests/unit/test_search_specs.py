"""Ends of a bisection: patchsets on releases, and upstream's wheels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwright.pipeline.checkout import open_checkout
from sparkwright.search import specs
from sparkwright.wheel.names import parse_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def resolver(tmp_path_factory: pytest.TempPathFactory) -> specs.Resolver:
    access: Any = None  # neither releases nor wheels here are looked for in the store
    return specs.Resolver(open_checkout(ROOT), access, tmp_path_factory.mktemp("ends"), "", "")


def test_an_end_names_its_own_patchset(resolver: specs.Resolver) -> None:
    with_own, default = (resolver.resolve(text) for text in ("0.24@0.24.0", "0.33.0"))
    assert "hybrid-hit" in {carry.name for carry in with_own.carries}
    assert "hybrid-hit" not in {carry.name for carry in default.carries}


@pytest.mark.parametrize("release", ["0.24.0", "0.33.0"])
def test_upstreams_wheel_has_the_lock_of_its_release(resolver: specs.Resolver, release: str) -> None:
    name = parse_name(f"vllm-{release}-cp38-abi3-manylinux_2_28_x86_64.whl")
    found = resolver._stock_wheel("x.whl", name)
    assert found.lock.release.version == release
    assert resolver._stock_wheel("x.whl", parse_name("vllm-0.9.0-py3-none-any.whl")).lock is None
