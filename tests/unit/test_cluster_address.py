"""Addresses of clusters."""

from __future__ import annotations

import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.base.ssh import SshHost, parse_host
from sparkwright.cluster import parse_cluster


def test_machines_by_ssh():
    found = parse_cluster("ssh://spark-1,builder@spark-2:2222")
    assert found.hosts == (SshHost("spark-1"), SshHost("spark-2", "builder", 2222))
    assert found.scheduler == ""


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "tls://scheduler:8786", "tcp://[::1]:8786"])
def test_a_scheduler(address):
    assert parse_cluster(address).scheduler == address
    assert parse_cluster(f"{address}/").scheduler == address


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("spark-1", "neither of ssh nor of a scheduler"),
        ("http://spark-1:8786", "neither of ssh nor of a scheduler"),
        ("ssh://", "no name of a machine"),
        ("ssh://spark-1,,spark-2", "no name of a machine"),
        ("ssh://spark-1,spark-1", "twice"),
        ("ssh://-oProxyCommand=sh", "no name of a machine"),
        ("ssh://spark-1/folder", "no name of a machine"),
        ("ssh://spark-1:port", "Port could not be cast"),
        ("tcp://scheduler", "host and port"),
        ("tcp://scheduler:8786/a", "host and port"),
    ],
)
def test_what_is_no_cluster(address, why):
    with pytest.raises(ConfigError) as error:
        parse_cluster(address)
    assert why in error.value.because


@pytest.mark.parametrize("address", ["ssh://me:secret@spark-1", "tcp://me:secret@scheduler:8786"])
def test_a_password_is_refused_and_not_shown(address):
    with pytest.raises(ConfigError) as error:
        parse_cluster(address)
    assert "secret" not in f"{error.value} {error.value.next_step}"


def test_a_host_is_no_option_and_an_argument_no_script():
    argv = parse_host("builder@spark-1:22").argv('echo "$1"', "a; rm -rf /")
    assert argv[argv.index("--") + 1] == "spark-1"
    assert argv[-1] == "exec sh -c 'echo \"$1\"' sparkwright 'a; rm -rf /'"
