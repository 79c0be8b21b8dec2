"""Fixtures that all tests share."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from kit import Recorder, Scene, UpstreamRepository
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from sparkwright.base.events import subscribe
from sparkwright.git.repository import Repository, open_repository
from sparkwright.store.paths import Store, open_store

# A script that runs the tests in the background leaves SIGINT ignored, and every program that they start
# inherits that. With a handler here, those programs get the default back and can be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Asserts rewritten by pytest and modules that children import are compiled once, not by every process.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test writes to a store that the user shares with other machines.
os.environ.pop("SPARKWRIGHT_STORE_URL", None)
os.environ["SPARKWRIGHT_STORE_CONFIG"] = os.devnull

# jsonschema compiles 38 grammars with it when it is imported, for formats that no test asks for.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment] # as if it were not installed

# As the command line does: looking for cycles among many objects took a quarter of the time of some tests.
gc.set_threshold(100_000)

settings.register_profile(
    "sparkwright",
    deadline=None,  # examples start real processes
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("sparkwright")

_MEMORY = Path("/dev/shm")
_LARGE = {"image", "native", "systemd"}
"""Folders of tests whose files would fill the memory."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary folders in memory where there is room: stores and journals are synced at every step."""
    if not _MEMORY.is_dir() or _LARGE & {part for word in config.args for part in Path(word).parts}:
        return
    state = os.statvfs(_MEMORY)
    if state.f_bavail * state.f_frsize > 8 << 30 and not state.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


_MATRIX = "test_verify_faults.py"
_UNITS = "unit"
# Tests that share what takes long to set up: the matrix, environments, a configured build, servers, merges,
# a browser, answers of releases.
_TOGETHER = (
    _MATRIX,
    "test_channel_clients.py",
    "test_cli_verify_reference.py",
    "test_flashinfer_upstream.py",
    "test_inspection_upstream.py",
    "test_installer.py",
    "test_native_real.py",
    "test_nightly_real.py",
    "test_preflight_real.py",
    "test_publish_clients.py",
    "test_publish_selection.py",
    "test_recipes_real.py",
    "test_rehearsal_real.py",
    "test_spark_patchset.py",
    "test_triton_kernels.py",
    "test_upstream_real.py",
    "test_verify_report_page.py",
    "test_wheel_upstream.py",
    "test_without_clone.py",
)
_SHARING = {
    # Their machines are forks of one process that has imported everything.
    "cluster": ("test_cli_bisect_served.py", "test_cluster_verify.py", "test_machines.py"),
    # One S3 server serves them all.
    "s3": (
        "test_channel_targets.py",
        "test_publish_target_faults.py",
        "test_publish_targets.py",
        "test_store_remote_servers.py",
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the fault matrix, then with what takes long, so that all workers end together."""
    items.sort(key=_shortness)


def _shortness(item: pytest.Item) -> tuple[int, int]:
    """Return how late a test may begin: the matrix, which waits beside others, then the slow, then units.

    Units go to workers by file, the larger ones earlier.
    """
    if item.path.name == _MATRIX:
        return 0, 0
    if item.get_closest_marker("slow"):
        return 1, 0
    return (3, -_size(item.path)) if _UNITS in item.path.parts else (2, 0)


@functools.cache
def _size(path: Path) -> int:
    return path.stat().st_size


class _Scheduling(LoadScopeScheduling):
    """Sends units by file, whose fixtures they share, and most other tests each to the next idle worker.

    Those of `_TOGETHER` go to one worker: any other that had one of them would set up the same once more.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if f"/{_UNITS}/" in file:
            return file
        for name, files in _SHARING.items():
            if file.endswith(files):
                return name
        return next((part for part in _TOGETHER if f"/{part}" in nodeid), nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget what a worker that crashed had finished.

        xdist 3.8 gives all of it to others. One that gets a finished file has nothing to report, is given
        nothing more, and the run does not end.
        """
        work = self.assigned_work[node]
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]
        return super().remove_node(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # the order is that of the collection
    return _Scheduling(config, log)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "home")


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    opened = open_repository(tmp_path / "git")
    yield opened
    opened.close()


@pytest.fixture
def upstream(tmp_path: Path) -> UpstreamRepository:
    return UpstreamRepository(tmp_path / "upstream")


@pytest.fixture
def heard() -> Iterator[Recorder]:
    """The events that the test's code emits."""
    recorder = Recorder()
    with subscribe(recorder):
        yield recorder


@pytest.fixture
def scene(repository: Repository, tmp_path: Path) -> Scene:
    """A merge whose base and target the test fills in."""
    return Scene(repository, tmp_path / "carries", base={})
