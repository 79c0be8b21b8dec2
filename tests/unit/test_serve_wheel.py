"""The wheel that is served where none is named: of this machine and of a wanted series."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from channel_kit import small_wheel

from sparkwright.base.errors import ConfigError
from sparkwright.cli.verify import built_wheel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder with wheels of two series and machines; the one made last is of another machine."""
    made = (("0.33.0+spark.1", "aarch64"), ("0.24.0+spark.1", "aarch64"), ("0.24.0+spark.2", "x86_64"))
    for age, (version, machine) in enumerate(made):
        path = small_wheel(tmp_path, version, tag=f"py3-none-manylinux_2_28_{machine}")
        os.utime(path, (1e9 + age, 1e9 + age))
    return tmp_path


def test_the_one_made_last_for_this_machine_is_taken(dist: Path) -> None:
    assert "0.24.0" in built_wheel(dist, "aarch64").name
    assert "x86_64" in built_wheel(dist, "x86_64").name


def test_only_wheels_of_the_wanted_series_count(dist: Path) -> None:
    assert "0.33.0" in built_wheel(dist, "aarch64", "0.33").name
    assert "0.24.0" in built_wheel(dist, "aarch64", "0.33", "0.24").name
    with pytest.raises(ConfigError, match=r"no wheel of series 0\.33 for this machine, which is x86_64"):
        built_wheel(dist, "x86_64", "0.33")
