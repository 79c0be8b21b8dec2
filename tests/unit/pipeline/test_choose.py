"""Which kernels a wheel gets: what is asked for, what the lock can do, and what card is in this machine."""

import platform
from pathlib import Path

import msgspec
import pytest
from kit import write_program
from test_patchset import COMPILING, LOCK

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.pipeline.options import choose_arch

HERE = platform.machine()
HOPPER = msgspec.structs.replace(COMPILING, native=msgspec.structs.replace(COMPILING.native, arch="9.0a"))


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes `nvidia-smi` a program that runs this script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def install(script: str) -> None:
        write_program(tmp_path / "nvidia-smi", script)

    return install


def test_upstream_and_native_are_taken_at_their_word(card) -> None:
    card("echo 12.1")
    assert choose_arch(COMPILING, HERE, kernels="upstream") is None
    card("exit 9")
    assert choose_arch(COMPILING, HERE, kernels="native") == "12.1a"
    assert choose_arch(COMPILING, HERE, kernels="native", arch="9.0a") == "9.0a"
    assert choose_arch(COMPILING, HERE, arch="9.0a") == "9.0a"


def test_auto_compiles_on_the_very_card_for_this_very_machine(card) -> None:
    other = "x86_64" if HERE == "aarch64" else "aarch64"
    card("echo 12.1")
    assert choose_arch(COMPILING, HERE) == "12.1a"
    assert choose_arch(COMPILING, other) is None
    assert choose_arch(LOCK, HERE) is None
    assert choose_arch(HOPPER, HERE) is None
    card("echo 9.0; echo 12.1")
    assert choose_arch(COMPILING, HERE) is None
    assert choose_arch(HOPPER, HERE) == "9.0a"


@pytest.mark.parametrize("script", ["exit 9", "true", "echo '[N/A]'", "echo 12.0"])
def test_a_card_that_cannot_be_told_is_not_the_card(card, script: str) -> None:
    card(script)
    assert choose_arch(COMPILING, HERE) is None


def test_the_machine_is_asked_only_where_it_decides(card, heard) -> None:
    card("echo 12.1")
    choose_arch(COMPILING, HERE, kernels="native")
    choose_arch(COMPILING, HERE, kernels="upstream")
    choose_arch(LOCK, HERE)
    assert heard.of("process.ended") == []
    choose_arch(COMPILING, HERE)
    assert len(heard.of("process.ended")) == 1


@pytest.mark.parametrize("arch", ["sm_121a", "12", "12.1b", "12.1a;9.0", "121a", "12.1a\n"])
def test_what_is_no_architecture(arch: str) -> None:
    with pytest.raises(UnknownNameError, match="no architecture"):
        choose_arch(COMPILING, HERE, arch=arch)


def test_what_does_not_go_together() -> None:
    with pytest.raises(ConfigError, match=r"and for 12\.1a"):
        choose_arch(COMPILING, HERE, kernels="upstream", arch="12.1a")
    for kernels, arch in (("native", ""), ("auto", "12.1a")):
        with pytest.raises(ConfigError, match="cannot be compiled"):
            choose_arch(LOCK, HERE, kernels=kernels, arch=arch)
