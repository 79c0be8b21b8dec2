"""A check is registered by its module alone: where it runs, and in what order."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.verify.checks import ALL, checks_of, discover
from sparkwright.verify.checks.common import Check
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import profile_of
from sparkwright.verify.profile import PROFILES, Profile

MODULE = """
from sparkwright.verify.checks.common import Check

CHECK = Check({name!r}, lambda *_: (), lambda *_: (), profiles={{"full": 5}})
"""


def found(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> Mapping[str, Check]:
    package = folder / "some_checks"
    package.mkdir()
    for name, source in {"__init__": "", **modules}.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    try:
        return discover("some_checks", [str(package)])
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "some_checks"]:
            del sys.modules[name]


def test_a_module_with_a_check_is_found_and_one_without_is_not(tmp_path, monkeypatch):
    checks = found(tmp_path, monkeypatch, latency=MODULE.format(name="latency"), shared="LIMIT = 1\n")
    assert {name: dict(one.profiles) for name, one in checks.items()} == {"latency": {"full": 5}}


def test_two_checks_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MODULE.format(name="latency")
    with pytest.raises(ConfigError, match="'latency'") as caught:
        found(tmp_path, monkeypatch, first=source, second=source)
    assert "first.py" in caught.value.because
    assert "second.py" in caught.value.because


def test_all_checks_are_registered_by_their_names() -> None:
    assert {"boot", "sweep", "crash", "context", "coherence", "bands"} <= set(ALL)
    assert all(check.name == name for name, check in ALL.items())


def test_registrations_name_profiles_that_exist() -> None:
    assert all(set(registered.profiles) <= set(PROFILES) for registered in ALL.values())


def test_every_profile_runs_the_checks_that_list_it_in_order_of_position() -> None:
    for profile in (name for name, sizes in PROFILES.items() if not sizes.checks):
        names = checks_of(profile)
        places = [ALL[name].profiles[profile] for name in names]
        assert places == sorted(set(places)), "no two checks of a profile have one position"
        assert profile_of(VerifyOptions(profile=profile)).checks == names


def test_a_profile_that_lists_its_checks_runs_these() -> None:
    listed = {name: sizes.checks for name, sizes in PROFILES.items() if sizes.checks}
    assert "quick" in listed
    for name, checks in listed.items():
        assert set(checks) <= set(ALL)
        assert profile_of(VerifyOptions(profile=name)).checks == checks


def test_checks_keep_their_order() -> None:
    order = ("boot", "coherence", "sweep", "bands", "crash", "context", "soak", "lossless")
    assert tuple(name for name in checks_of("full") if name in order) == order
    assert checks_of("smoke")[0] == checks_of("demo")[0] == "boot"


def test_a_profile_that_no_check_lists_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="'none-such'"):
        checks_of("none-such")


def test_options_override_the_sizes_that_are_given_instead_of_a_profile() -> None:
    sizes = Profile(name="small", checks=("boot", "sweep"), levels=(1, 2), speed=7.0)
    assert profile_of(VerifyOptions(simulator=True), sizes) == sizes
    changed = profile_of(VerifyOptions(simulator=True, levels=(4,), checks=("boot",)), sizes)
    assert (changed.levels, changed.checks, changed.speed) == ((4,), ("boot",), 7.0)
