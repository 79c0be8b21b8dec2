"""Locked runtimes: files that fit a machine are kept, and what is not exact is refused."""

import re
from pathlib import Path

import pytest
from packaging.markers import default_environment

from sparkwright.base.errors import ConfigError, LockMismatchError
from sparkwright.lock.model import read_lock
from sparkwright.lock.runtime import (
    LockedPackage,
    LockedRuntime,
    format_runtime,
    joined_requirements,
    parse_runtime,
    plain_requirements,
    read_runtime,
    runtime_of,
)

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "patchsets").glob("*.requirements.txt"))
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def entry(name: str, version: str, *files: tuple[str, str], marker: str = "", sdist: str = "") -> str:
    wheels = ", ".join(
        f'{{ url = "https://example.org/{file}", hashes = {{ sha256 = "{sha256}" }} }}'
        for file, sha256 in files
    )
    text = f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
    text += f'marker = "{marker}"\n' if marker else ""
    text += (
        f'sdist = {{ url = "https://example.org/{name}.tar.gz", hashes = {{ sha256 = "{sdist}" }} }}\n'
        if sdist
        else ""
    )
    return text + f"wheels = [{wheels}]\n"


def environment(machine: str = "aarch64", python: str = "3.12") -> dict[str, str]:
    given = {"platform_machine": machine, "python_version": python, "python_full_version": f"{python}.1"}
    return {**{name: str(value) for name, value in default_environment().items()}, **given}


class TestResolution:
    def test_only_files_that_fit_the_machine_are_kept(self) -> None:
        files = (
            ("torch-2.11.0-cp312-cp312-manylinux_2_28_aarch64.whl", A),
            ("torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl", B),
            ("torch-2.11.0-cp310-cp310-manylinux_2_28_aarch64.whl", C),
            ("torch-2.11.0-cp313-cp313t-manylinux_2_28_aarch64.whl", C),
            ("torch-2.11.0-cp312-cp312-win_amd64.whl", C),
            ("torch-2.11.0-cp312-cp312-musllinux_1_2_aarch64.whl", C),
            ("torch-2.11.0-pp311-pypy311_pp73-manylinux_2_28_aarch64.whl", C),
        )
        (found,) = runtime_of(entry("torch", "2.11.0", *files), "aarch64").packages
        assert found == LockedPackage("torch", "2.11.0", "", (A,))
        (found,) = runtime_of(entry("torch", "2.11.0", *files), "x86_64").packages
        assert found.hashes == (B,)

    def test_wheels_for_any_machine_and_abi3_ones_fit(self) -> None:
        files = (
            ("six-1.17.0-py2.py3-none-any.whl", A),
            ("six-1.17.0-cp38-abi3-manylinux2014_aarch64.whl", B),
        )
        assert runtime_of(entry("six", "1.17.0", *files), "aarch64").packages[0].hashes == (A, B)

    def test_an_sdist_counts_only_without_a_fitting_wheel(self) -> None:
        other = ("z-1-cp312-cp312-win_amd64.whl", A)
        assert runtime_of(entry("z", "1", other, sdist=B), "aarch64").packages[0].hashes == (B,)
        fitting = ("z-1-py3-none-any.whl", A)
        assert runtime_of(entry("z", "1", fitting, sdist=B), "aarch64").packages[0].hashes == (A,)

    def test_a_package_without_a_file_for_the_machine_is_refused(self) -> None:
        with pytest.raises(LockMismatchError, match="no file for that machine"):
            runtime_of(entry("z", "1", ("z-1-cp312-cp312-win_amd64.whl", A)), "aarch64")

    def test_a_file_without_a_digest_is_refused(self) -> None:
        with pytest.raises(LockMismatchError, match="no SHA-256"):
            runtime_of(entry("z", "1", ("z-1-py3-none-any.whl", "")), "aarch64")

    def test_markers_keep_what_the_machine_does_not_decide(self) -> None:
        always = (
            "implementation_name == 'cpython' and platform_machine == 'aarch64' and sys_platform == 'linux'"
        )
        file = ("z-1-py3-none-any.whl", A)
        assert runtime_of(entry("z", "1", file, marker=always), "aarch64").packages[0].marker == ""
        young = f"python_full_version < '3.12' and {always}"
        assert runtime_of(entry("z", "1", file, marker=young), "aarch64").packages[0].marker == (
            "python_full_version < '3.12'"
        )
        either = "python_full_version < '3.12' or extra == 'x'"
        assert runtime_of(entry("z", "1", file, marker=either), "aarch64").packages[0].marker == either


class TestFile:
    RUNTIME = LockedRuntime(
        (
            LockedPackage("numpy", "2.3.5", "python_full_version < '3.13'", (A, B)),
            LockedPackage("numpy", "2.4.6", "python_full_version >= '3.13'", (C,)),
            LockedPackage("torch", "2.11.0", "", (A,)),
        ),
        ("certifi>=1",),
        ("scipy",),
    )

    def test_recorded_overrides_count_again_and_a_given_one_replaces_its_projects(self) -> None:
        recorded = ("certifi>=1", "Typing_Extensions<5")
        assert joined_requirements(recorded, ()) == recorded
        assert joined_requirements(recorded, ("typing-extensions<6",)) == (
            "certifi>=1",
            "typing-extensions<6",
        )

    def test_a_written_runtime_is_read_again(self) -> None:
        text = format_runtime(self.RUNTIME, release="0.24.0", machine="aarch64")
        read = parse_runtime(text, "it")
        assert read.overrides == ("certifi>=1",)
        assert read.extras == ("scipy",)
        assert read.digest == parse_runtime(read.text, "it").digest
        assert [(one.name, one.version, one.hashes) for one in read.packages] == [
            (one.name, one.version, one.hashes) for one in self.RUNTIME.packages
        ]

    @pytest.mark.parametrize(
        ("line", "because"),
        [
            (f"torch>=2.11.0 --hash=sha256:{A}", "no exact version"),
            (f"torch==2.* --hash=sha256:{A}", "no exact version"),
            ("torch==2.11.0", "no SHA-256"),
            (f"torch==2.11.0 --hash=md5:{A}", "no SHA-256"),
            (f"torch==2.11.0 --hash=sha256:{A} --hash=md5:{A}", "does not belong there"),
            ("--index-url https://example.org", "is no requirement"),
            (f"torch @ https://example.org/x.whl --hash=sha256:{A}", "no exact version"),
            ("", "holds no package"),
        ],
    )
    def test_what_is_not_exact_is_refused(self, line: str, because: str) -> None:
        with pytest.raises(ConfigError, match=because):
            parse_runtime(f"# a comment\n{line}\n", "it")

    def test_missing_and_wrong_versions_are_found_by_the_interpreter(self) -> None:
        wants = ["torch==2.11.0", "numpy<2.4", "six; sys_platform == 'win32'", "pandas; extra == 'bench'"]
        assert self.RUNTIME.missing(wants, environment()) == ()
        assert self.RUNTIME.missing(wants, environment(python="3.13")) == ("numpy<2.4",)
        assert self.RUNTIME.missing(["Torch==2.12", "pandas"], environment()) == ("Torch==2.12", "pandas")

    def test_an_override_counts_instead_of_the_requirement(self) -> None:
        runtime = LockedRuntime((LockedPackage("certifi", "2026.10.18", "", (A,)),))
        wants = ["certifi>=2026.10.19"]
        assert runtime.missing(wants, environment()) == ("certifi>=2026.10.19",)
        replaced = LockedRuntime(runtime.packages, ("certifi>=2026.10.18",))
        assert replaced.missing(wants, environment()) == ()

    def test_requirements_of_extras_are_left_out(self) -> None:
        wants = ["a", "b; extra == 'x'", "c; python_version > '3'"]
        assert plain_requirements(wants) == ("a", "c; python_version > '3'")


class TestShipped:
    def test_every_series_has_a_runtime_for_each_machine(self) -> None:
        locks = [ROOT / "upstream.lock", *(ROOT / "patchsets").glob("*.lock")]
        wanted = {
            f"{lock.series}-{machine}.requirements.txt"
            for lock in map(read_lock, locks)
            for machine in lock.wheels
        }
        assert {path.name for path in SHIPPED} == wanted

    @pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
    def test_it_has_the_torch_that_binaries_are_built_against_and_names_no_place(self, path: Path) -> None:
        runtime = read_runtime(path)
        series = path.name.partition("-")[0]
        lock = next(
            lock
            for lock in map(read_lock, [ROOT / "upstream.lock", *(ROOT / "patchsets").glob("*.lock")])
            if lock.series == series
        )
        assert runtime.missing([f"torch=={lock.release.torch}"], environment()) == ()
        assert any(package.name.startswith("nvidia-cuda-runtime") for package in runtime.packages), "CUDA's"
        assert not re.search(r"://|index|\bfile:", path.read_text())
