"""Companions: the same modules give the same wheel, FlashInfer's two ways of asking, and planted faults."""

import importlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import companion_kit as kit
import elfkit
import pytest
import wheelkit

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import AuditError, ConfigError, WheelError
from sparkwright.companion.inspection import CompanionAudit, audit_companion
from sparkwright.companion.wheel import FoundCompanion, companion_for, needed_by, write_companion
from sparkwright.engine.offered import built_wheel
from sparkwright.native.model import Target
from sparkwright.store.paths import Store
from sparkwright.wheel.names import parse_name

PROVIDER = "flashinfer_jit_cache/providers/sm121a"


def made(store: Store, folder: Path, **changes: Any) -> Path:
    """A companion of one module in *folder*."""
    path = kit.library(folder, "sampling", changes.pop("images", kit.IMAGES))
    module = kit.module(store, path, changes.pop("arches", None))
    return write_companion(store, kit.content([module], **changes), folder / "dist").path


def audited(store: Store, folder: Path, wheel: Path, **changes: Any) -> CompanionAudit:
    return audit_companion(
        wheel, kit.inspector(store, folder / "tools"), kit.surroundings(folder / "libraries", **changes)
    )


def failed(report: CompanionAudit) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if check.verdict != "pass"}


@pytest.mark.parametrize(("tile", "refused"), [(32, False), (64, True)])
def test_a_tile_that_flashinfer_never_chooses_may_be_undefined(store, tmp_path, tile, refused):
    name = f"_ZN10flashinfer38BatchPrefillWithPagedKVCacheDispatchedILb1ELj{tile}ELj256ELj256EEv"
    code = f"int {name}(void); int run(void) {{ return {name}(); }}"
    path = elfkit.shared(tmp_path / "sampling.so", code, device=elfkit.device(list(kit.IMAGES)))
    wheel = write_companion(store, kit.content([kit.module(store, path)]), tmp_path / "dist").path
    assert ("symbols-resolve" in failed(audited(store, tmp_path, wheel))) == refused


def test_the_same_modules_give_the_same_bytes_and_others_another_version(store, tmp_path):
    first, again = made(store, tmp_path / "a"), made(store, tmp_path / "b")
    assert first.name == again.name
    assert sha256_file(first) == sha256_file(again)
    other = made(store, tmp_path / "c", images=[("sm_121a", ["another"])])
    assert parse_name(other.name).version != parse_name(first.name).version
    assert first.name.startswith("flashinfer_jit_cache_sm121a-1.2.3+cu130.k")


def test_each_installed_provider_is_found_and_a_broken_one_passed_over(store, tmp_path, monkeypatch):
    wheel, site = made(store, tmp_path), tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name, answer in (("sm120f", "STATED"), ("broken", "{}")):
        info = site / f"{name}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(
            f"[flashinfer.jit_cache.providers]\n{name} = {name}_kernels:get\n"
        )
        (site / f"{name}_kernels.py").write_text(
            "STATED = dict(provider_id='sm120f', cuda_architectures=['sm120f'], modules=['moe'])\n"
            f"def get():\n    return {answer}\n"
        )
    monkeypatch.syspath_prepend(site)
    package = importlib.import_module("flashinfer_jit_cache")
    monkeypatch.delitem(sys.modules, "flashinfer_jit_cache")
    own, other = sorted(package.get_jit_cache_providers(), key=lambda one: one.provider_id, reverse=True)
    assert package.__version__ == own.version == "1.2.3+cu130"
    assert (own.provider_id, own.distribution) == ("sm121a", "flashinfer-jit-cache-sm121a")
    assert (own.cuda_architectures, own.modules) == ({"sm121a"}, {"sampling"})
    assert own.jit_cache_dir == package.get_jit_cache_dir()
    assert Path(own.jit_cache_dir, "sampling", "sampling.so").is_file()
    assert other.modules == {"moe"}


def test_a_companion_is_not_taken_for_a_wheel_to_verify(store: Store, tmp_path: Path) -> None:
    folder = made(store, tmp_path).parent
    with pytest.raises(ConfigError, match="holds no wheel for this machine"):
        built_wheel(folder, kit.TARGET.machine, (), {})
    (folder / f"vllm-1.0-py3-none-linux_{kit.TARGET.machine}.whl").write_bytes(b"")
    chosen = built_wheel(folder, kit.TARGET.machine, (), {})
    assert chosen.wheel.name.startswith("vllm-1.0")


def test_a_healthy_companion_passes_its_audit(store: Store, tmp_path: Path) -> None:
    report = audited(store, tmp_path, made(store, tmp_path))
    assert failed(report) == {}
    assert (report.target, report.cubins) == (kit.TARGET, {"sampling": 1})
    report.require()


def test_code_for_the_family_passes_where_it_was_compiled_for_that(store: Store, tmp_path: Path) -> None:
    wheel = made(store, tmp_path, images=[("sm_120f", ["sample"])], arches={"sm_120f": 1})
    report = audited(store, tmp_path, wheel)
    assert failed(report) == {}
    assert "1 for its family" in next(one.detail for one in report.checks if one.name == "kernels-native")


@pytest.mark.parametrize(
    ("images", "arches", "fault"),
    [
        ([("sm_121a", ["a"]), ("compute_120", ["a"])], {"sm_121a": 1}, "PTX for compute_120"),
        ([("sm_90a", ["a"])], {"sm_90a": 1}, "do not run on 12.1a"),
        ([("sm_120f", ["a"])], {"sm_121a": 1}, "compiled were {'sm_121a': 1}"),
        ([("sm_121a", ["a"])], {"sm_121a": 2}, "{'sm_121a': 1}, compiled were {'sm_121a': 2}"),
    ],
)
def test_other_device_code_fails_the_audit(store, tmp_path, images, arches, fault):
    found = failed(audited(store, tmp_path, made(store, tmp_path, images=images, arches=arches)))
    assert list(found) == ["kernels-native"]
    assert fault in found["kernels-native"]


def test_an_undefined_symbol_fails_the_audit(store: Store, tmp_path: Path) -> None:
    report = audited(store, tmp_path, made(store, tmp_path), symbol="SomethingElse")
    assert list(failed(report)) == ["symbols-resolve"]
    with pytest.raises(AuditError, match="TVMFFICall is undefined") as caught:
        report.require()
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("member", "check"),
    [
        (f"{PROVIDER}/jit_cache/sampling/sampling.so", "modules"),
        ("flashinfer_jit_cache/__init__.py", "modules"),
        (f"{PROVIDER}/__init__.py", "modules"),
        (f"{PROVIDER}/manifest.json", "modules"),
        ("entry_points.txt", "modules"),
        ("flashinfer_jit_cache/more.py", "record-complete"),
        ("sboms/sparkwright.cdx.json", "sbom"),
    ],
)
def test_a_changed_member_fails_the_audit(store: Store, tmp_path: Path, member: str, check: str) -> None:
    wheel = made(store, tmp_path)
    if member.startswith(("sboms/", "entry_points")):
        member = f"{parse_name(wheel.name).dist_info}/{member}"
    other = kit.library(tmp_path / "other", "sampling", [("sm_121a", ["other"])]).read_bytes()
    changed = tmp_path / "changed" / wheel.name
    changed.parent.mkdir()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w") as new:
        for name in dict.fromkeys([*old.namelist(), member]):
            content = other if name == member else old.read(name)
            new.writestr(
                zipfile.ZipInfo(name), b"x = 1\n" if name == member and name.endswith("py") else content
            )
    found = failed(audited(store, tmp_path, changed))
    assert {"record-complete", check} <= set(found)


def rewritten(wheel: Path, folder: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of *wheel* whose members are changed, with a RECORD that fits them."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    info = parse_name(wheel.name).dist_info
    members.pop(f"{info}/RECORD")
    change(members)
    folder.mkdir()
    return wheelkit.pack(folder / wheel.name, wheelkit.with_record(members, info))


@pytest.mark.parametrize(
    ("member", "failing", "detail"),
    [
        ("", {}, ""),
        ("sboms/sparkwright.cdx.json", ["sbom"], "sboms/sparkwright.cdx.json is missing"),
        ("flashinfer_jit_cache/__init__.py", ["modules"], "flashinfer_jit_cache/__init__.py is missing"),
        ("entry_points.txt", ["modules"], "entry_points.txt is missing"),
        (
            f"{PROVIDER}/jit_cache/sampling/sampling.so",
            ["modules"],
            "sampling.so is missing",
        ),
    ],
)
def test_a_companion_without_one_of_its_members_fails_the_audit(store, tmp_path, member, failing, detail):
    def drop(members: dict[str, bytes]) -> None:
        for name in [name for name in members if member and name.endswith(member)]:
            del members[name]

    found = failed(audited(store, tmp_path, rewritten(made(store, tmp_path), tmp_path / "lacking", drop)))
    assert [*found] == [*failing]
    assert all(detail in told for told in found.values())


@pytest.mark.parametrize(
    "change",
    [
        {"flashinfer": {}},
        {"toolchain": None},
        {"target": {"machine": kit.TARGET.machine, "arch": 12.1}},
        {"modules": {"sampling": {"listed": "sampling", "sha256": "0" * 64, "size": ""}}},
        {"recipes": []},
        {"tree": "\ud800"},
    ],
)
def test_a_companion_whose_record_is_of_another_form_is_refused_and_passed_over(store, tmp_path, change):
    def edit(members: dict[str, bytes]) -> None:
        record = next(name for name in members if name.endswith("companion.json"))
        members[record] = json.dumps({**json.loads(members[record]), **change}).encode()

    wheel = rewritten(made(store, tmp_path), tmp_path / "other", edit)
    with pytest.raises(WheelError, match="no complete record"):
        audited(store, tmp_path, wheel)
    assert companion_for([wheel], kit.SPEC.version, kit.TARGET, lambda record: needed_by(record, "x")) is None


# Choosing ---------------------------------------------------------------------------------


def test_the_companion_with_most_modules_is_chosen_of_several_the_smallest(store, tmp_path):
    one = made(store, tmp_path / "one")
    modules = [
        kit.module(store, kit.library(tmp_path / name, name, [("sm_121a", [name])]), name=name)
        for name in ("sampling", "moe")
    ]
    both = write_companion(store, kit.content(modules), tmp_path / "both").path
    other = tmp_path / "vllm-1.0-py3-none-any.whl"
    other.write_bytes(b"")

    def chosen(*needed: str, version: str = kit.SPEC.version, arch: str = kit.TARGET.arch) -> object:
        target = Target(kit.TARGET.machine, arch)
        return companion_for([both, other, one], version, target, lambda _: needed)

    assert chosen("sampling") == FoundCompanion(one)
    assert chosen("sampling", "moe") == FoundCompanion(both)
    assert chosen("sampling", "page") == FoundCompanion(one, ("page",))
    assert chosen("page") is None
    assert chosen("sampling", arch="9.0a") is None
    assert chosen("sampling", version="1.2.4") is None
    assert (
        companion_for([one], kit.SPEC.version, kit.TARGET, lambda _: needed_by({"recipes": {}}, "x")) is None
    )
    one.write_bytes(one.read_bytes()[:-9])
    assert chosen("sampling") == FoundCompanion(both)
