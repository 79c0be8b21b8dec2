"""pip's configuration, in pip's order."""

import os

import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.upstream import network
from sparkwright.upstream.network import IndexSettings, read_settings


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An environment whose every configuration file lies in a folder of ours."""
    monkeypatch.setattr(network, "_MACHINE_FILE", tmp_path / "machine.conf")
    return {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_DIRS": str(tmp_path / "etc"),
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "PIP_CONFIG_FILE": str(tmp_path / "chosen.conf"),
    }


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_configuration_the_library_chooses():
    assert read_settings({"PIP_CONFIG_FILE": os.devnull}) == IndexSettings()
    assert read_settings({"PIP_CONFIG_FILE": os.devnull}, offline=True).offline


def test_the_index_of_wheels_by_commit_has_an_address():
    chosen = {"PIP_CONFIG_FILE": os.devnull, "SPARKWRIGHT_UPSTREAM_WHEELS": "https://mirror.example/wheels"}
    assert read_settings(chosen).upstream_wheels == "https://mirror.example/wheels"


def test_later_files_win_key_by_key(tmp_path, home):
    del home["PIP_CONFIG_FILE"]
    write(tmp_path / "etc/pip/pip.conf", "[global]\nindex-url = https://etc/\ncert = /etc.pem\n")
    assert read_settings(home).index_url == "https://etc/"
    write(tmp_path / "machine.conf", "[global]\nindex-url = https://machine/\n")
    assert read_settings(home).index_url == "https://machine/"
    write(tmp_path / "home/.pip/pip.conf", "[global]\nindex_url = https://legacy/\n")
    assert read_settings(home).index_url == "https://legacy/"
    write(tmp_path / "home/.config/pip/pip.conf", "[global]\nindex-url = https://user/\n")
    assert read_settings(home).index_url == "https://user/"
    write(tmp_path / "venv/pip.conf", "[download]\nindex-url = https://venv/\n[global]\nindex-url = x\n")
    assert read_settings(home).index_url == "https://venv/"
    write(tmp_path / "chosen.conf", "[global]\nindex-url = https://chosen/\n")
    home["PIP_CONFIG_FILE"] = str(tmp_path / "chosen.conf")
    assert read_settings(home).index_url == "https://chosen/"
    home["PIP_INDEX_URL"] = "https://variable/"
    assert read_settings(home).index_url == "https://variable/"
    assert read_settings(home).cert == "/etc.pem"


def test_a_chosen_file_replaces_the_users(tmp_path, home):
    write(tmp_path / "home/.config/pip/pip.conf", "[global]\ncert = /user.pem\n")
    assert read_settings(home).cert == "/user.pem"
    write(tmp_path / "chosen.conf", "[global]\nindex-url = https://chosen/\n")
    assert read_settings(home).cert == ""


def test_extra_indexes_are_a_list(tmp_path, home):
    write(tmp_path / "chosen.conf", "[global]\nextra-index-url =\n  https://one/\n  file:///two\n")
    assert read_settings(home).extra_index_urls == ("https://one/", "file:///two")
    home["PIP_EXTRA_INDEX_URL"] = "https://three/ https://four/"
    assert read_settings(home).extra_index_urls == ("https://three/", "https://four/")


def test_other_sections_change_nothing(tmp_path, home):
    write(
        tmp_path / "chosen.conf",
        "[install]\nindex-url = https://install/\ntrusted-host = evil\n[freeze]\ntimeout = 1\n",
    )
    assert read_settings(home) == IndexSettings()


def test_trusted_hosts_are_those_that_pip_was_told(tmp_path, home):
    write(tmp_path / "chosen.conf", "[global]\ntrusted-host = one\n    two:8080\n")
    assert read_settings(home).trusted_hosts == ("one", "two:8080")
    assert read_settings({**home, "PIP_TRUSTED_HOST": "three"}).trusted_hosts == ("three",)


def test_a_broken_file_is_named(tmp_path, home):
    write(tmp_path / "chosen.conf", "index-url = no section\n")
    with pytest.raises(ConfigError, match=r"chosen\.conf"):
        read_settings(home)
