"""The record of upstream's later releases has every carry of each series."""

from pathlib import Path
from typing import Any

import pytest
from kit import load_file
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from sparkwright.pipeline.checkout import open_checkout, series_names

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> Any:
    return load_file(ROOT / "scripts" / "upstream_releases.py")


def test_what_upstream_leaves_out_is_done_by_a_carry_of_that_releases_series() -> None:
    specs = [open_checkout(ROOT, series).build_spec() for series in series_names(ROOT)]
    carried = {(carry.name, spec.lock.release.version) for spec in specs for carry in spec.carries}
    parts = [
        entry for spec in specs for carry in spec.carries for entry in carry.spec.superseded if entry.rest
    ]
    assert parts
    for entry in parts:
        releases = SpecifierSet(entry.releases)
        assert any(name == entry.rest and releases.contains(version) for name, version in carried)


@pytest.mark.parametrize("series", series_names(ROOT))
def test_the_record_has_every_later_release_and_carry_in_order(script: Any, series: str) -> None:
    columns = script.recorded().get(series, {})
    spec = open_checkout(ROOT, series).build_spec()
    pin = Version(spec.lock.release.version)
    assert list(columns) == [one for one in script.RELEASES if Version(one) > pin]
    assert all([*column] == [carry.name for carry in spec.carries] for column in columns.values())
