"""The assembler and the audit on the wheel that the lock of series 0.24 names."""

import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import wheelkit

from sparkwright.pipeline.checkout import open_checkout
from sparkwright.publish.index import publish
from sparkwright.store.paths import open_store
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.network import read_settings
from sparkwright.wheel.assemble import AssemblyPlan, BuiltWheel, assemble
from sparkwright.wheel.audit import audit
from sparkwright.wheel.binaries import Expectation
from sparkwright.wheel.names import local_version
from sparkwright.wheel.recorded import read_record

pytestmark = [pytest.mark.upstream, pytest.mark.slow]
PLATFORM = "aarch64"


@pytest.fixture(scope="module")
def expectation() -> Expectation:
    """Upstream's wheel, and a merge that changes two files, adds one and deletes one."""
    store = open_store()
    lock = open_checkout(Path(__file__).parents[3], "0.24").lock
    artifact = lock.wheel(PLATFORM)
    fetch_artifact(store, artifact, read_settings())
    wheel = store.named_file(artifact.sha256, artifact.filename)
    with zipfile.ZipFile(wheel) as archive:
        changes = {
            "vllm/envs.py": archive.read("vllm/envs.py") + b"# changed\n",
            "vllm/config/cache.py": archive.read("vllm/config/cache.py") + b"# changed\n",
            "vllm/config/spark.py": b"SPARK = True\n",
            "vllm/collect_env.py": None,
            "tests/test_spark.py": b"",
        }
    version = local_version(lock.release.version, "spark", "1a2b3c4d")
    record = {"point.json": wheelkit.point_of(version), "carries.json": {"format": 1, "carries": []}}
    return Expectation(wheel, artifact, lock, changes, version, record=record)


@pytest.fixture(scope="module")
def built(expectation: Expectation, tmp_path_factory: pytest.TempPathFactory) -> BuiltWheel:
    return assemble(_plan(expectation), tmp_path_factory.mktemp("built"))


def _plan(expectation: Expectation) -> AssemblyPlan:
    return AssemblyPlan(
        expectation.upstream_wheel,
        expectation.artifact.sha256,
        expectation.version or "",
        expectation.changes or {},
        expectation.record or {},
        lock=expectation.lock,
    )


def test_our_wheel_passes_and_is_the_same_every_time(expectation, built, tmp_path):
    version = expectation.version or ""
    assert assemble(_plan(expectation), tmp_path / "two").sha256 == built.sha256
    for binary in read_record(built.path).binaries:
        assert re.fullmatch(r"vllm/(.*\.so|vllm-rs)", binary.member), "a binary of a new kind"
    report = audit(built.path, expectation)
    assert report.failures == ()
    assert report.unchecked == (), "what looks into kernels that we compiled has nothing to say here"
    index = publish(built.path.parent)
    assert [(file.version, file.requires_python) for file in index.files] == [
        (version, expectation.lock.release.requires_python)
    ]


def test_what_is_planted_in_our_wheel_is_found(expectation, built, tmp_path):
    """Bytes between members, with the number and the size of the real wheel's, and a twin without them.

    Other faults of an archive are in test_wheel_archive.py and test_wheel_hostile.py.
    """
    *members, record = wheelkit.raw_members(built.path)
    planted = {"": members, "bytes between": [replace(members[0], gap=b"evil"), *members[1:]]}
    for fault, spoilt in planted.items():
        wheel = tmp_path / built.path.name
        wheel.write_bytes(wheelkit.raw_zip([*spoilt, record]))
        failures = {check.name for check in audit(wheel, expectation).failures}
        assert ("archive-safe" in failures) == bool(fault), (fault, failures)
        assert failures == set() or fault
