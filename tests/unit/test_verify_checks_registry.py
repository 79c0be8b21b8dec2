"""Profiles name the checks that they run, in order."""

from sparkwright.verify.check import PROFILES, Profile
from sparkwright.verify.checks import ALL
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import profile_of


def test_every_profile_runs_the_checks_that_it_names() -> None:
    for name, sizes in PROFILES.items():
        assert set(sizes.checks) <= set(ALL)
        assert len(set(sizes.checks)) == len(sizes.checks) > 0
        assert sizes.checks[0] == "boot"
        assert profile_of(VerifyOptions(profile=name)).checks == sizes.checks


def test_checks_keep_their_order() -> None:
    order = ("boot", "coherence", "sweep", "bands", "crash", "context", "soak", "lossless")
    assert tuple(name for name in PROFILES["full"].checks if name in order) == order


def test_options_override_the_sizes_that_are_given_instead_of_a_profile() -> None:
    sizes = Profile(name="small", checks=("boot", "sweep"), levels=(1, 2), speed=7.0)
    assert profile_of(VerifyOptions(simulator=True), sizes) == sizes
    changed = profile_of(VerifyOptions(simulator=True, levels=(4,), checks=("boot",)), sizes)
    assert (changed.levels, changed.checks, changed.speed) == ((4,), ("boot",), 7.0)
