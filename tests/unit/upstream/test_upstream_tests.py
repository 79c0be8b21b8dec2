"""Upstream's tests on two trees: what regresses, what is flaky, what says nothing, and what is chosen."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit import Content, make_tree, seed_environment, seed_test_packages

from sparkwright.base.errors import ConfigError, EnvironmentSetupError, NotInStoreError, ToolError
from sparkwright.git.repository import Repository
from sparkwright.native.host import isolated, require_isolation
from sparkwright.probe import environment as environment_module
from sparkwright.probe import upstream_tests
from sparkwright.probe.pool import ProbePool
from sparkwright.probe.upstream_choice import choose_tests
from sparkwright.probe.upstream_tests import UpstreamGate, UpstreamTest, read_record, reason_of, write_record
from sparkwright.store.paths import Store

Gates = Callable[..., UpstreamGate]

CACHE = "vllm/v1/core/cache.py"
FILE = "tests/v1/core/test_cache.py"
TESTS = """\
import os
import socket

import pytest

import vllm.v1.core.cache as cache

RAN = []


def test_healthy():
    RAN.append(1)
    assert cache.size(2) == 2


def test_regression():
    assert cache.size(0) == 0, "size(0) is not 0"


def test_state():
    assert not (RAN and cache.size(0)), "something ran before"


def test_process():
    os._exit(3)


def test_card():
    raise RuntimeError("Found no NVIDIA driver")


def test_package():
    import ray_that_is_not_here


def test_network():
    socket.create_connection(("192.0.2.1", 80), timeout=1)


def test_loopback():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


@pytest.mark.skip(reason="a day off")
def test_skipped():
    pass


@pytest.mark.parametrize("count", [1, 2])
def test_counts(count):
    assert cache.size(count) == count
"""
PACKAGE: dict[str, Content] = {
    "vllm/__init__.py": "",
    "vllm/v1/__init__.py": "",
    "vllm/v1/core/__init__.py": "",
    "vllm/v1/core/other.py": "VALUE = 1\n",
    CACHE: "def size(n):\n    return n\n",
    "tests/__init__.py": "",
    "tests/conftest.py": "import vllm\n",
    "tests/v1/__init__.py": "",
    "tests/v1/core/__init__.py": "",
    FILE: TESTS,
}
FIXED = "def size(n):\n    return max(n, 1)\n"
HEALTHY = "def size(n):\n    return n + 0\n"


@pytest.fixture(autouse=True)
def packages(store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of probes without torch, and beside it the pytest that runs this."""
    monkeypatch.setattr(environment_module, "requirements", lambda: "nothing\n")
    monkeypatch.setattr(upstream_tests, "_TEST_S", 2.0)
    seed_environment(store, "nothing\n")
    return seed_test_packages(store)


@pytest.fixture
def gate(store: Store, repository: Repository) -> Iterator[Gates]:
    """Return a gate on the package and on it with other files."""
    try:
        require_isolation()
    except ToolError as error:
        pytest.skip(str(error))
    with ProbePool(store, most=2) as pool:

        def make(
            merged: dict[str, Content], pristine: dict[str, Content] = PACKAGE, **options: bool
        ) -> UpstreamGate:
            trees = [make_tree(repository, files) for files in (pristine, {**pristine, **merged})]
            return UpstreamGate(store, repository, *trees, "1.0.0", pool, isolated(()), **options)

        yield make


def test_each_test_gets_its_word(gate: Gates, tmp_path: Path) -> None:
    endless = f"{TESTS}\n\ndef test_time():\n    import time\n\n    time.sleep(60)\n"
    found = gate({CACHE: FIXED}, {**PACKAGE, FILE: endless}).run()
    assert found.regressions == {f"{FILE}::test_regression": "AssertionError: size(0) is not 0"}
    assert found.flaky == (f"{FILE}::test_state",)
    assert found.passed == 4
    assert found.unjudged == {
        "fails here": {FILE: 1},
        "needs a GPU": {FILE: 1},
        "needs a model or the network": {FILE: 1},
        "needs the package ray_that_is_not_here": {FILE: 1},
        "skips itself": {FILE: 1},
        "takes longer than the limit": {FILE: 1},
    }
    path = upstream_tests.record_path(tmp_path, "1.0")
    assert read_record(path) is None
    write_record(path, found)
    assert read_record(path) == found
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not a record"):
        read_record(path)


def test_a_change_that_cannot_be_imported_is_found(gate: Gates) -> None:
    assert len(gate({CACHE: "import that_is_not_here\n"}).run().regressions) == 6


def test_a_test_that_ends_its_process_on_the_merged_tree_is_a_regression(gate):
    files = {CACHE: "import os\n\n\ndef size(n):\n    return os._exit(1) if n == 2 else n\n"}
    found = gate(files).run()
    assert sorted(found.regressions) == [f"{FILE}::test_counts[2]", f"{FILE}::test_healthy"]


def test_a_healthy_change_is_silent_and_results_are_kept(gate: Gates, monkeypatch) -> None:
    found = gate({CACHE: HEALTHY}).run()
    assert (found.regressions, found.flaky, found.passed) == ({}, (), 6)
    monkeypatch.setattr(UpstreamGate, "_run", lambda *_, **__: pytest.fail("it ran again"))
    assert gate({CACHE: HEALTHY}).run() == found


def test_the_key_changes_with_code_tests_choice_and_packages(gate, monkeypatch):
    def key(merged: dict[str, Content], pristine: dict[str, Content] = PACKAGE) -> str:
        return gate(merged, pristine).key()

    keys = [
        key({CACHE: FIXED}),
        key({CACHE: HEALTHY}),
        key({CACHE: FIXED}, {**PACKAGE, FILE: "def test_other():\n    pass\n"}),
        key({CACHE: FIXED}, {**PACKAGE, "vllm/v1/core/other.py": "VALUE = 2\n"}),
    ]
    assert key({CACHE: FIXED, "csrc/kernel.cu": "// not Python\n"}) == keys[0]
    monkeypatch.setattr(upstream_tests, "test_requirements", lambda: "pytest==1\n")
    keys.append(key({CACHE: FIXED}))
    monkeypatch.setattr(upstream_tests, "choice_source", lambda: "def choose_tests(): ...\n")
    assert len({*keys, key({CACHE: FIXED})}) == 6


def test_files_can_be_named(gate: Gates) -> None:
    pristine = {**PACKAGE, "tests/test_other.py": "def test_other():\n    pass\n"}
    assert gate({CACHE: FIXED}, pristine).run(["tests/test_other.py"]).passed == 1
    with pytest.raises(ConfigError, match="not in upstream's tree"):
        gate({CACHE: FIXED}).run(["tests/test_gone.py"])


def test_a_gate_that_judges_nothing_is_an_error(gate: Gates, packages: Path) -> None:
    (packages / "_pytest").unlink()
    broken = gate({CACHE: FIXED})
    assert broken.run([FILE]).unjudged == {"needs the package _pytest": {FILE: 1}}
    with pytest.raises(EnvironmentSetupError, match="not one in 1 files passes"):
        broken.run()


def test_what_is_missing_is_told(gate: Gates, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_tests, "test_requirements", lambda: "pytest==1\n")
    with pytest.raises(NotInStoreError, match="packages for upstream's tests"):
        gate({CACHE: FIXED}, offline=True).run()
    upstream_tests.packages_folder(store).mkdir()
    monkeypatch.setattr(upstream_tests, "_SERVER", "gone.py")
    with pytest.raises(EnvironmentSetupError, match="the process that imports vLLM ended"):
        gate({CACHE: FIXED}).run()


@pytest.mark.parametrize(
    ("file", "text", "chosen"),
    [
        ("tests/v1/test_a.py", "from vllm.v1.core.cache import size\n", True),
        ("tests/v1/test_a.py", "from vllm.v1.core import cache\n", True),
        ("tests/v1/test_a.py", "def test():\n    import vllm.v1.core.cache\n", True),
        ("tests/v1/test_a.py", "patch('vllm.v1.core.cache.size')\n", True),
        ("tests/v1/test_a.py", "from tests.v1.aid import use\n", True),
        ("tests/v1/test_a.py", "from .aid import use\n", True),
        ("tests/v1/core/test_cache.py", "import vllm\n", True),
        ("tests/v1/other/test_cache.py", "import vllm\n", False),
        ("tests/v1/test_a.py", "from vllm.v1.core.other import cache\n", False),
        ("tests/v1/test_a.py", "# vllm.v1.core.cache\n", False),
        ("tests/v1/test_a.py", "from tests.common import use\n", False),
        ("tests/v1/test_a.py", "from vllm.v1.core.cache import (\n", False),
        ("tests/v1/use.py", "from vllm.v1.core.cache import size\n", False),
    ],
)
def test_tests_are_chosen_by_what_they_name(tmp_path: Path, file: str, text: str, *, chosen: bool) -> None:
    files = {
        "tests/v1/aid.py": "from vllm.v1.core.cache import size as use\n",
        "tests/common.py": "from vllm.v1.core.cache import size as use\n",
        file: text,
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert choose_tests(tmp_path, [CACHE, "vllm/kernel.cu"]) == ([file] if chosen else [])


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("ModuleNotFoundError: No module named 'ray.util'", "needs the package ray"),
        ("ModuleNotFoundError: No module named 'vllm.gone'", "fails here"),
        ("OSError: We couldn't connect to 'https://huggingface.co'", "needs a model or the network"),
        (
            "AttributeError: '_OpNamespace' '_C' object has no attribute 'x'",
            "needs vLLM's compiled extensions",
        ),
        ("not run: it ran for more than 120 s", "takes longer than the limit"),
        ("it used 7000 MiB of 6144 MiB of memory", "takes more memory than the limit"),
        ("assert 1 == 2", "fails here"),
    ],
)
def test_what_cannot_pass_is_counted_by_its_reason(said: str, reason: str) -> None:
    assert reason_of(UpstreamTest(outcome="failed", said=said)) == reason
