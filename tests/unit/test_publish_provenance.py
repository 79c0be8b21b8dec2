"""The provenance statement, read by in-toto's own classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wheelkit
from audit_case import INFO, Case
from audit_case import make_case as upstream_case
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from test_wheel_sbom import checked_in, pinned

from sparkwright.base.errors import WheelError
from sparkwright.cli.main import main
from sparkwright.lock import Lock
from sparkwright.publish.provenance import BUILDER, provenance_of
from sparkwright.wheel.recorded import WheelRecord, read_record
from sparkwright.wheel.sbom import SBOM, sbom


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return upstream_case(tmp_path_factory.mktemp("provenance"))


def wheel_of(folder: Path, series: str, platform: str, kernels: str) -> Path:
    """A file with the record and the bill of materials of that wheel, and nothing else."""
    return packed(folder, *checked_in(series, platform, kernels))


def packed(folder: Path, record: WheelRecord, lock: Lock) -> Path:
    platform, version = record.point.platform, record.point.version
    info = f"vllm-{version}.dist-info"
    files = {
        f"{info}/{SBOM}": sbom(record, lock),
        **{f"{info}/sparkwright/{name}": data for name, data in files_of(record).items()},
    }
    name = f"vllm-{version}-cp38-abi3-manylinux_2_28_{platform}.whl"
    return wheelkit.pack(folder / name, wheelkit.with_record(files, info))


def files_of(record: WheelRecord) -> dict[str, bytes]:
    """The files of a record, as a wheel has them."""
    import msgspec

    files = {
        "point.json": record.point, "carries.json": {"carries": record.carries},
        "providers.json": record.binaries, "kernels.json": record.kernels,
    }  # fmt: skip
    return {name: msgspec.json.encode(value) for name, value in files.items() if value is not None}


def parsed(data: bytes) -> tuple[dict[str, Any], Any]:
    """The predicate, after in-toto's classes have read the statement, and its SLSA message."""
    message = json_format.Parse(data, statement_pb2.Statement())
    Statement.copy_from_pb(message).validate()
    predicate = json.loads(data)["predicate"]
    return predicate, json_format.ParseDict(predicate, provenance_pb2.Provenance())


@pytest.mark.parametrize(
    ("series", "platform", "kernels"),
    [("0.24", "aarch64", "native"), ("0.24", "x86_64", "upstream"), ("0.33", "aarch64", "upstream")],
)
def test_in_totos_classes_read_it_and_it_names_every_input(
    tmp_path: Path, series: str, platform: str, kernels: str
) -> None:
    wheel = wheel_of(tmp_path, series, platform, kernels)
    record, lock = checked_in(series, platform, kernels)
    data = provenance_of(wheel)
    _, message = parsed(data)
    (subject,) = json.loads(data)["subject"]
    assert subject == {"name": wheel.name, "digest": {"sha256": wheelkit.sha256(wheel)}}
    assert message.run_details.metadata.invocation_id == record.point.digest
    assert message.build_definition.external_parameters["kernels"] == kernels
    found = {one.name: one for one in message.build_definition.resolved_dependencies}
    assert found["release"].digest["sha256"] == lock.required_sdist().sha256
    assert found["upstream-wheel"].digest["sha256"] == lock.wheel(platform).sha256
    for name, source in lock.sources.items():
        commit = len(source.ref) == 40
        assert found[f"source:{name}"].uri.endswith(f"@{source.ref}")
        assert found[f"source:{name}"].digest == ({"gitCommit": source.ref} if commit else {})
    for carry in record.carries:
        if carry.patch is not None:
            one = found[f"carry:{carry.name}:{carry.patch.file}"]
            assert one.digest["sha256"] == carry.patch.sha256
            pulls = one.annotations["pullRequests"] if carry.upstream else ()
            assert [int(pull) for pull in pulls] == list(carry.upstream)
            assert one.annotations["proof"]["verdict"] == "proved"
    assert found["carry:pulled"].digest["gitCommit"] == "ab" * 20
    assert "carry:gone" not in found
    packages = [name for name in found if name.startswith("package:")]
    assert len(packages) == (len(record.kernels.packages) if record.kernels else 0)


def test_the_same_wheel_gives_the_same_bytes_without_times(case: Case, tmp_path: Path) -> None:
    spoilt = wheelkit.spoil(case.wheel, tmp_path, patched)
    assert provenance_of(spoilt) == provenance_of(spoilt)
    assert json.loads(provenance_of(spoilt))["predicate"]["runDetails"] == {
        "builder": {"id": BUILDER, "version": {"sparkwright": "0.1.0"}},
        "metadata": {"invocationId": read_record(case.wheel).point.digest},
    }


def test_a_pinned_commit_is_named_by_its_id(tmp_path: Path) -> None:
    record, lock = checked_in("0.24", "aarch64", "upstream")
    predicate, _ = parsed(provenance_of(packed(tmp_path, record, pinned(lock))))
    found = {one["name"]: one for one in predicate["buildDefinition"]["resolvedDependencies"]}
    assert found["release"]["digest"] == {"gitCommit": lock.release.commit}
    assert "gitCommit" not in found["upstream-wheel"]["digest"]


def patched(files: dict[str, bytes]) -> None:
    """Give every carry of the small wheel a patch."""
    name = f"{INFO}/sparkwright/carries.json"
    value = json.loads(files[name])
    for carry in value["carries"]:
        carry["patch"] = {"file": "0.24.0.patch", "sha256": "ab" * 32}
    files[name] = json.dumps(value).encode()


def test_a_wheel_that_does_not_name_its_inputs_has_none(case: Case, tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="no statement can be made"):
        provenance_of(case.wheel)
    with pytest.raises(WheelError, match="no sparkwright record"):
        provenance_of(case.expectation.upstream_wheel)
    for planted, told in ((None, "no bill of materials"), (b"{}", "malformed"), (b"[", "not JSON")):
        spoilt = wheelkit.spoil(
            case.wheel, tmp_path,
            lambda files, planted=planted: (  # type: ignore[misc]
                patched(files),
                files.pop(f"{INFO}/{SBOM}") if planted is None else files.update({f"{INFO}/{SBOM}": planted}),
            ),
        )  # fmt: skip
        with pytest.raises(WheelError, match=told):
            provenance_of(spoilt)


def test_the_command_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = wheel_of(tmp_path, "0.24", "aarch64", "upstream")
    assert main(["audit", "--provenance", str(wheel)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(provenance_of(wheel))
    (tmp_path / "vllm-1-py3-none-any.whl").write_bytes(b"no zip")
    words = ["audit", "--provenance", str(tmp_path / "vllm-1-py3-none-any.whl"), "--json"]
    assert main(words) != 0
    assert "error" in json.loads(capsys.readouterr().out)
