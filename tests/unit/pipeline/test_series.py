"""The lock and the patchset that a command takes: those of one series."""

from pathlib import Path
from typing import Any

import pytest
import tomlkit
from native_kit import lock_text
from tiny_release import make_tiny

from sparkwright.base.errors import ConfigError, LockMismatchError, UnknownNameError
from sparkwright.carries.patchset import load_patchset
from sparkwright.lock.model import LOCK_NAME, read_lock
from sparkwright.pipeline.checkout import Checkout, open_checkout, series_names

ROOT = Path(__file__).parents[3]


def write_lock(root: Path, name: str, series: str, version: str) -> None:
    (root / name).write_text(f'series = "{series}"\n{lock_text(make_tiny(version).lock)}' if series else
                             lock_text(make_tiny(version).lock))  # fmt: skip


def write_patchset(root: Path, file: str, **tables: Any) -> None:
    tables = {"format": 1, "name": "spark", "summary": "Small fixes", "carries": [], **tables}
    (root / "patchsets" / f"{file}.toml").write_text(tomlkit.dumps(tables))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the series 1.2, which is the default, and 1.5, and a patchset of neither."""
    (tmp_path / "patchsets").mkdir()
    write_lock(tmp_path, LOCK_NAME, "1.2", "1.2.0")
    write_lock(tmp_path, "patchsets/1.5.lock", "1.5", "1.5.0")
    for series in ("1.2", "1.5"):
        write_patchset(tmp_path, series, series=series)
    write_patchset(tmp_path, "mine", name="mine")
    return tmp_path


def chosen(checkout: Checkout, patchset: str = "") -> tuple[str, str, str]:
    """The series, the pinned release and the patchset's file."""
    spec = checkout.build_spec(patchset)
    assert (checkout.lock_path.is_file(), read_lock(checkout.lock_path)) == (True, checkout.lock)
    return checkout.series, spec.lock.release.version, spec.file


@pytest.mark.parametrize(
    ("series", "patchset", "expected"),
    [
        ("", "", ("1.2", "1.2.0", "1.2")), ("1.2", "", ("1.2", "1.2.0", "1.2")),
        ("1.5", "", ("1.5", "1.5.0", "1.5")), ("", "1.5", ("1.5", "1.5.0", "1.5")),
        ("1.5", "1.5", ("1.5", "1.5.0", "1.5")), ("", "mine", ("1.2", "1.2.0", "mine")),
        ("1.5", "mine", ("1.5", "1.5.0", "mine")),
    ],
)  # fmt: skip
def test_a_series_has_its_own_lock_and_patchset(root, series, patchset, expected):
    assert chosen(open_checkout(root, series, patchset), patchset) == expected


def test_both_series_name_their_wheels_alike_and_pin_apart(root: Path) -> None:
    one, other = (open_checkout(root, series).build_spec() for series in ("1.2", "1.5"))
    assert one.patchset == other.patchset == "spark"
    assert one.digest != other.digest


def test_the_series_is_no_part_of_a_digest(root: Path) -> None:
    """A checkout from before series has a lock without one, and the patchset spark."""
    now = open_checkout(root).build_spec()
    write_lock(root, LOCK_NAME, "", "1.2.0")
    write_patchset(root, "spark")
    before = open_checkout(root)
    assert (before.series, before.build_spec().file) == ("1.2", "spark")
    assert (before.build_spec().digest, before.build_spec().content) == (now.digest, now.content)


def test_a_patchset_leads_to_its_series_lock(root: Path) -> None:
    checkout = open_checkout(root)
    assert checkout.of("1.5") == open_checkout(root, "1.5")
    assert checkout.of("mine") is checkout.of("1.2") is checkout.of("no-such") is checkout
    assert {lock.release.version for lock in checkout.of("1.5").locks()} == {"1.2.0", "1.5.0"}


def test_a_series_without_a_lock_is_refused(root: Path) -> None:
    (root / "patchsets" / "1.5.lock").unlink()
    for series, patchset in (("1.5", ""), ("", "1.5")):
        with pytest.raises(ConfigError) as caught:
            open_checkout(root, series, patchset)
        assert not isinstance(caught.value, UnknownNameError)
        assert "patchsets/1.5.lock" in caught.value.because
        assert "--new-series 1.5" in caught.value.next_step
    assert chosen(open_checkout(root)) == ("1.2", "1.2.0", "1.2")


@pytest.mark.parametrize("stated", ["1.2", ""])
def test_a_lock_of_another_series_is_refused(root: Path, stated: str) -> None:
    write_lock(root, "patchsets/1.5.lock", stated, "1.5.0")
    with pytest.raises(LockMismatchError) as caught:
        open_checkout(root, "1.5")
    assert "patchsets/1.5.lock" in caught.value.what
    assert repr(stated) in caught.value.because


def test_a_patchset_of_another_series_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_checkout(root, "1.2", "1.5").build_spec("1.5")
    assert "1.5" in caught.value.because
    assert "--series 1.5" in caught.value.next_step


@pytest.mark.parametrize(("name", "series"), [(LOCK_NAME, "1.2"), ("patchsets/1.5.lock", "1.5")])
def test_a_lock_of_an_older_release_than_its_series_is_refused(root: Path, name: str, series: str) -> None:
    write_lock(root, name, series, "1.1.0")
    with pytest.raises(LockMismatchError) as caught:
        open_checkout(root, series)
    assert name in caught.value.what
    assert "1.1.0" in caught.value.because


def test_a_series_may_be_pinned_at_a_later_release(root: Path) -> None:
    write_lock(root, LOCK_NAME, "1.2", "1.4.0")
    assert chosen(open_checkout(root)) == ("1.2", "1.4.0", "1.2")


def test_a_series_with_two_locks_is_refused(root: Path) -> None:
    write_lock(root, "patchsets/1.2.lock", "1.2", "1.2.0")
    with pytest.raises(ConfigError) as caught:
        open_checkout(root)
    assert {LOCK_NAME, "patchsets/1.2.lock"} <= set(caught.value.because.split())


@pytest.mark.parametrize(("file", "tables"), [("1.3", {"series": "1.2"}), ("other", {"name": "mine"})])
def test_a_patchset_in_a_file_of_another_name_is_refused(root, file, tables):
    write_patchset(root, file, **tables)
    with pytest.raises(ConfigError) as caught:
        load_patchset(root / "patchsets", file)
    assert f"patchsets/{file}.toml" in caught.value.what


@pytest.mark.parametrize("series", series_names(ROOT))
def test_the_readme_has_the_size_of_each_patchset(series: str) -> None:
    spec = open_checkout(ROOT, series).build_spec()
    version = spec.lock.release.version
    lines = sum(carry.lines(version) for carry in spec.carries)
    row = f"| [`{series}`](patchsets/{series}.toml) | {version} | {len(spec.carries)} | {lines} |"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert row in readme.splitlines(), f"README.md: write the row of {series} as: {row}"


def test_this_project_has_a_whole_series_for_each_lock() -> None:
    assert set(series_names(ROOT)) == {"0.24", "0.33"}
    for series in series_names(ROOT):
        spec = open_checkout(ROOT, series).build_spec()
        assert (spec.file, spec.patchset) == (series, "spark")
        assert spec.lock.release.version.startswith(f"{series}.")
