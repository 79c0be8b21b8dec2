"""The bill of materials: valid after the published schema, complete, reproducible, and held to the record."""

import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import wheelkit
from audit_case import INFO, Case, make_case
from cyclonedx.schema import SchemaVersion

from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.errors import WheelError
from sparkwright.lock.model import Lock
from sparkwright.native.model import Extension, Target
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.wheel.assemble import assemble
from sparkwright.wheel.audit import audit
from sparkwright.wheel.kernels import KERNELS, kernels_record
from sparkwright.wheel.recorded import CARRIES, POINT, PROVIDERS, SBOM, WheelRecord, read_record
from sparkwright.wheel.sbom import sbom

ROOT = Path(__file__).parents[3]
# Kernels are compiled in series 0.24 only.
WHEELS = [
    (series, platform, kernels)
    for series, kernels in (("0.24", "upstream"), ("0.24", "native"), ("0.33", "upstream"))
    for platform in ("aarch64", "x86_64")
]
# A URI or a relative reference, by the characters of RFC 3986; square brackets are of IPv6 alone.
ADDRESS = re.compile(r"(?:[A-Za-z0-9\-._~:/?#@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+")
PULL = {"repository": "https://github.com/vllm-project/vllm.git", "number": 54076, "head": "ab" * 20}


@functools.cache
def checked_in(series: str, platform: str, kernels: str) -> tuple[WheelRecord, Lock]:
    """The record of a wheel of this checkout's carries, as if each had been applied, and the lock."""
    checkout = open_checkout(ROOT, series)
    lock, native = checkout.lock, checkout.lock.native
    spec = checkout.build_spec("", arch=native.arch if native and kernels == "native" else None)
    carries: list[dict[str, Any]] = []
    for carry in spec.deciding:
        revision = carry.revision_for(lock.release.version)
        assert revision is not None
        carries.append({
            "name": carry.name, "title": carry.spec.title, "outcome": "applied",
            "upstream": [one.pull for one in carry.spec.upstream], "source": carry.spec.source or "",
            "patch": {"file": revision.patch, "sha256": carry.patch_sha256(revision)},
            "proof": {"key": "5e" * 32, "verdict": "proved"},
        })  # fmt: skip
    carries.append({"name": "pulled", "title": "A pull request", "outcome": "applied", "pull": PULL})
    carries.append({"name": "gone", "title": "Absorbed", "outcome": "absorbed"})
    members = [one.member for one in native.extensions.values()] if native else []
    compiled = members if kernels == "native" else []
    providers = [
        {
            "member": member, "sha256": "b1" * 32, "size": 1,
            "provider": "compiled" if member in compiled else "upstream-wheel", "from": "x",
        }
        for member in [*members, "vllm/vllm-rs"]
    ]  # fmt: skip
    point = {**wheelkit.point_of(f"{lock.release.version}+spark.1.d1d1d1d1", platform, kernels)}
    files = {POINT: {**point, "digest": spec.digest}, CARRIES: {"carries": carries}, PROVIDERS: providers}
    if native is not None and kernels == "native":
        packages = [*native.toolkit.builder[platform].values(), *native.toolkit.target[platform].values()]
        extension = Extension(target="t", key="k", sha256="b1" * 32, size=1, arches={})
        files[KERNELS] = kernels_record(
            Target(platform, native.arch), "toolchain", compiled=dict.fromkeys(compiled, extension),
            upstream={"vllm/vllm-rs": "another compiler"},
            attested={}, left_out=(), packages={one.filename: one.sha256 for one in packages},
        )  # fmt: skip
    return WheelRecord.of(files), lock


def by_reference(bill: bytes) -> dict[str, dict[str, Any]]:
    """The components by their references."""
    value = json.loads(bill)
    return {one["bom-ref"]: one for one in [value["metadata"]["component"], *value["components"]]}


def addresses(value: Any) -> Iterator[str]:
    """Yield every address in *value*."""
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [one for key, one in value.items() if key != "url"]
        yield from [value["url"]] if "url" in value else []
    elif isinstance(value, list):
        inner = value
    for one in inner:
        yield from addresses(one)


@functools.cache
def validator() -> Any:
    """Return the validator by the schema that CycloneDX publishes for 1.6."""
    # Every process that collects would wait for it.
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6)


def faults(bill: bytes) -> list[str]:
    """The violations of the schema, and what stands for an address and is none.

    The schema's own check of addresses compiles 38 grammars; conftest.py hides it from every test.
    """
    found = [str(one) for one in [validator().validate_str(bill.decode())] if one is not None]
    return found + [one for one in addresses(json.loads(bill)) if not ADDRESS.fullmatch(one)]


@pytest.mark.parametrize(("series", "platform", "kernels"), WHEELS)
def test_it_is_valid_and_lists_every_input(series: str, platform: str, kernels: str) -> None:
    record, lock = checked_in(series, platform, kernels)
    bill = sbom(record, lock)
    assert faults(bill) == []
    found = by_reference(bill)
    assert found["upstream-wheel"]["hashes"] == [{"alg": "SHA-256", "content": lock.wheel(platform).sha256}]
    for name, source in lock.sources.items():
        assert found[f"source:{name}"]["version"] == source.ref
        assert found[f"source:{name}"]["purl"].startswith("pkg:github/")
        assert found[f"source:{name}"]["purl"].endswith(f"@{source.ref}")
    for one in record.binaries:
        assert found[f"binary:{one.member}"]["hashes"][0]["content"] == one.sha256
    for carry in record.carries:
        assert (f"carry:{carry.name}" in found) == (carry.name != "gone")
        if carry.patch is not None:
            patch = ROOT / found[f"carry:{carry.name}"]["name"]
            assert found[f"carry:{carry.name}"]["hashes"][0]["content"] == sha256_file(patch)
    packages = {one["name"] for one in found.values() if one["bom-ref"].startswith("package:")}
    assert ("nvidia-cuda-nvcc" in packages) == (kernels == "native" and lock.native is not None)


def test_the_pedigree_names_the_release_its_commit_and_each_patch() -> None:
    record, lock = checked_in("0.24", "aarch64", "native")
    wheel = by_reference(sbom(record, lock))["wheel"]
    (ancestor,) = wheel["pedigree"]["ancestors"]
    assert (ancestor["purl"], ancestor["version"]) == ("pkg:pypi/vllm@0.24.0", "0.24.0")
    assert ancestor["hashes"][0]["content"] == lock.required_sdist().sha256
    assert [one["uid"] for one in wheel["pedigree"]["commits"]] == [lock.release.commit]
    patches = {one["resolves"][0]["id"]: one for one in wheel["pedigree"]["patches"]}
    assert set(patches) == {one.name for one in record.carries if not one.source and one.name != "gone"}
    assert (patches["tie-weights"]["type"], patches["pulled"]["type"]) == ("unofficial", "cherry-pick")
    assert patches["tie-weights"]["resolves"][0]["references"] == [
        "https://github.com/vllm-project/vllm/pull/45544"
    ]


def pinned(lock: Lock) -> Lock:
    """The lock as if it pinned a commit, which has no sdist."""
    release = msgspec.structs.replace(lock.release, tree="7e" * 20)
    return msgspec.structs.replace(lock, sdist=None, release=release)


def test_a_pinned_commit_is_the_ancestor() -> None:
    record, lock = checked_in("0.24", "aarch64", "upstream")
    bill = sbom(record, pinned(lock))
    assert faults(bill) == []
    (ancestor,) = by_reference(bill)["wheel"]["pedigree"]["ancestors"]
    assert ancestor["purl"] == f"pkg:github/vllm-project/vllm@{lock.release.commit}"
    assert "hashes" not in ancestor


def test_a_repository_elsewhere_is_named_by_its_address() -> None:
    record, lock = checked_in("0.24", "aarch64", "upstream")
    source = msgspec.structs.replace(
        lock.sources["cutlass"], repository="ssh://git@example.org/a/cutlass.git"
    )
    bill = sbom(record, msgspec.structs.replace(lock, sources={**lock.sources, "cutlass": source}))
    assert faults(bill) == []
    found = by_reference(bill)["source:cutlass"]
    assert found["purl"].startswith("pkg:generic/cutlass@v4.4.2?vcs_url=git%2Bssh:")


def test_a_patch_of_a_source_and_a_pull_request_by_its_head() -> None:
    found = by_reference(sbom(*checked_in("0.24", "aarch64", "native")))
    (patch,) = found["source:vllm-flash-attn"]["pedigree"]["patches"]
    assert patch["resolves"][0]["id"] == "flash-attn-sm121a"
    assert found["carry:pulled"]["version"] == PULL["head"]
    assert found["carry:pulled"]["externalReferences"][0]["url"].endswith("/vllm/pull/54076")
    assert found["carry:pulled"]["scope"] == "excluded"


def test_every_component_is_reached_from_the_wheel_and_compiled_ones_from_their_sources() -> None:
    record, lock = checked_in("0.24", "aarch64", "native")
    bill = sbom(record, lock)
    needs = {one["ref"]: one.get("dependsOn", []) for one in json.loads(bill)["dependencies"]}
    reached, left = set[str](), ["wheel"]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += needs[name]
    assert reached == set(by_reference(bill))
    attention = needs["binary:vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"]
    assert {"source:vllm-flash-attn", "source:vllm-flash-attn-cutlass"} <= set(attention)
    assert needs["binary:vllm/vllm-rs"] == ["upstream-wheel"]


def test_equal_inputs_give_equal_bytes_in_another_process_and_other_wheels_other_numbers() -> None:
    record, lock = checked_in("0.24", "aarch64", "native")
    bill = sbom(record, lock)
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_wheel_sbom as t;"
        "print(t.sha256_bytes(t.sbom(*t.checked_in('0.24', 'aarch64', 'native'))))"
    )
    folders = [str(Path(__file__).parent), str(ROOT / "tests/support")]
    other = subprocess.run(
        [sys.executable, "-c", code, *folders], env={"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"},
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert other.stdout.strip() == sha256_bytes(bill)
    numbers = {json.loads(sbom(*checked_in(*one)))["serialNumber"] for one in WHEELS}
    assert len(numbers) == len(WHEELS)
    assert b"timestamp" not in bill


def test_the_schema_finds_a_planted_fault() -> None:
    bill = sbom(*checked_in("0.24", "aarch64", "upstream"))
    assert faults(bill.replace(b'"type":"unofficial"', b'"type":"homemade"'))
    assert faults(bill.replace(b'"url":"https://', b'"url":"https://['))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("sbom"))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b'"bom-ref":"carry:clamp"', b'"bom-ref":"carry:other"', "carry:other does not belong there"),
        (
            b'"bom-ref":"binary:vllm/_C.abi3.so"',
            b'"bom-ref":"binary:vllm/_D.abi3.so"',
            "_C.abi3.so: component",
        ),
        (b'"value":"beef"', b'"value":"feed"', "wheel: component.properties"),
        (b'"content":"', b'"content":"00', "hashes"),
    ],
)
def test_a_component_that_disagrees_is_named(case, tmp_path, old, new, told):
    def change(files: dict[str, bytes]) -> None:
        assert old in files[f"{INFO}/{SBOM}"]
        files[f"{INFO}/{SBOM}"] = files[f"{INFO}/{SBOM}"].replace(old, new, 1)

    (found,) = audit(wheelkit.spoil(case.wheel, tmp_path, change), case.expectation).failures
    assert (found.name, told in found.detail) == ("sbom-agrees", True), found.detail


def test_bills_in_upstreams_wheel_are_kept(case: Case, tmp_path: Path) -> None:
    theirs = "vllm-0.24.0.dist-info/sboms/auditwheel.cdx.json"
    upstream = wheelkit.upstream_wheel(tmp_path, extra={theirs: b"{}"})
    plan = replace(case.plan, upstream_wheel=upstream, upstream_sha256=wheelkit.sha256(upstream))
    files = wheelkit.unpack(assemble(plan, tmp_path / "dist").path)
    assert files[f"{INFO}/sboms/auditwheel.cdx.json"] == b"{}"
    assert f"{INFO}/{SBOM}" in files


def test_a_record_that_cannot_be_read_is_one_clear_error(case: Case, tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="no sparkwright record"):
        read_record(case.expectation.upstream_wheel)
    spoilt = wheelkit.spoil(
        case.wheel, tmp_path, lambda files: files.update({f"{INFO}/sparkwright/point.json": b"{}"})
    )
    with pytest.raises(WheelError, match=r"point\.json cannot be read"):
        read_record(spoilt)
