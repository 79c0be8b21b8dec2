"""Looking into binaries: real ELF files of the machine's compiler, each fault beside its healthy twin."""

import contextlib
import platform
import random
from pathlib import Path

import elfkit
import pytest

from sparkwright.base.errors import BinaryError, ToolError
from sparkwright.native.device_code import (
    KernelClass,
    Tally,
    class_of,
    classify,
    of_class,
    parse_dump,
    read_device_code,
)
from sparkwright.native.elf import exports, honest_platform, over_platform, read_elf
from sparkwright.native.inspection import Inspector, Surroundings, inspect, resolve, unprovided
from sparkwright.native.model import Extension
from sparkwright.pipeline.kernels import foreign_extensions, not_native
from sparkwright.store.paths import Store

# ELF ---------------------------------------------------------------------------------------


def test_the_facts_of_a_shared_object(tmp_path: Path) -> None:
    library = elfkit.shared(
        tmp_path / "libbase.so", "int base(void) { return 1; }", "-Wl,-soname,libbase.so.1"
    )
    found = read_elf(
        elfkit.shared(
            tmp_path / "user.so",
            "#include <stdlib.h>\nint base(void); extern int maybe(void) __attribute__((weak));\n"
            "char *use(void) { return base() + (maybe ? maybe() : 0) + getenv(__func__); }",
            library, "-Wl,-rpath,/opt/x:$ORIGIN/lib", "-Wl,--enable-new-dtags",
        )
    )  # fmt: skip
    by_name = {symbol.name: symbol for symbol in found.undefined}
    assert (found.machine, found.device_code) == (platform.machine(), False)
    assert found.needed == ("libbase.so.1", "libc.so.6")
    assert found.run_paths == ("/opt/x", "$ORIGIN/lib")
    assert (by_name["base"].version, by_name["base"].library, by_name["base"].weak) == ("", "", False)
    assert by_name["maybe"].weak
    assert (by_name["getenv"].library, by_name["getenv"].version[:6]) == ("libc.so.6", "GLIBC_")
    assert "libc.so.6" in found.versions
    assert all(name.startswith("GLIBC_") for name in found.versions["libc.so.6"])
    assert ("base" in exports(library), "use" in exports(library)) == (True, False)


def test_an_old_style_path_is_seen_too(tmp_path: Path) -> None:
    flags = ("-Wl,-rpath,/opt/x", "-Wl,--disable-new-dtags")
    assert read_elf(elfkit.shared(tmp_path / "a.so", "int a;", *flags)).run_paths == ("/opt/x",)
    assert read_elf(elfkit.shared(tmp_path / "b.so", "int a;")).run_paths == ()


def test_a_stripped_file_for_another_machine_with_device_code(tmp_path: Path) -> None:
    found = read_elf(elfkit.shared(tmp_path / "a.so", "int a;", "-s", machine="x86_64", device=b"x"))
    assert (found.machine, found.device_code) == ("x86_64", True)


def test_damage_is_told_as_such(tmp_path: Path) -> None:
    whole = elfkit.shared(tmp_path / "a.so").read_bytes()
    read_elf(tmp_path / "a.so")
    for name, content in {
        "empty": b"",
        "text": b"#!/bin/sh\n",
        "header": whole[:40],
        "half": whole[: len(whole) // 2],
        "zeros": whole[:1024] + bytes(len(whole) - 1024),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BinaryError, match=name):
            read_elf(tmp_path / name)
    generator = random.Random(7)
    for _ in range(60):
        spoilt = bytearray(whole)
        for _ in range(20):
            spoilt[generator.randrange(len(spoilt))] = generator.randrange(256)
        (tmp_path / "spoilt").write_bytes(spoilt)
        with contextlib.suppress(BinaryError):  # and nothing else comes out
            read_elf(tmp_path / "spoilt")


# Device code -------------------------------------------------------------------------------

IMAGES = [
    ("sm_121a", ["gemm", "norm"]), ("sm_80", ["old"]), ("compute_80", ["old"]), ("sm_120f", ["norm"]),
    ("sm_121a", ["more"]),
]  # fmt: skip


@pytest.mark.parametrize("words", ["13.2", "13.5"])
@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_a_dump_is_read_wherever_it_is_cut(step: int, words: str) -> None:
    text = elfkit.dump(IMAGES, newer=words == "13.5")
    found = parse_dump(text[at : at + step] for at in range(0, len(text), step))
    assert found.cubins == {"sm_120f": 1, "sm_121a": 2, "sm_80": 1}
    assert found.ptx == {"compute_80": 1}
    assert [(group.arches, group.count, group.examples) for group in found.kernels] == [
        (("compute_80", "sm_80"), 1, ("old",)),
        (("sm_120f", "sm_121a"), 1, ("norm",)),
        (("sm_121a",), 2, ("gemm", "more")),
    ]


def test_device_code_of_a_binary(tmp_path: Path) -> None:
    program = elfkit.reader(tmp_path / "bin")
    binary = elfkit.shared(tmp_path / "a.so", device=elfkit.device(IMAGES))
    assert read_device_code(binary, program).cubins == {"sm_120f": 1, "sm_121a": 2, "sm_80": 1}
    host = elfkit.shared(tmp_path / "b.so")
    nothing = read_device_code(host, tmp_path / "no program is asked for that")
    assert (nothing.kernels, nothing.cubins, nothing.ptx) == ((), {}, {})
    with pytest.raises(ToolError, match="no such program"):
        read_device_code(binary, tmp_path / "no such program")


@pytest.mark.parametrize(
    ("images", "because"),
    [
        ([], "none"),
        ([("sm_121a", [])], "1 cubins"),
        ([("sm_121a", ["a"]), ("compute_80", [])], "1 PTX modules"),
        ([("sm_121a", []), ("compute_80", ["a"])], "1 cubins"),
    ],
)
def test_a_dump_that_is_not_understood_is_no_finding(tmp_path, images, because):
    binary = elfkit.shared(tmp_path / "a.so", device=elfkit.device(images))
    with pytest.raises(BinaryError) as caught:
        read_device_code(binary, elfkit.reader(tmp_path / "bin"))
    assert because in caught.value.because


def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    binary = elfkit.shared(tmp_path / "a.so", device=b"something else")
    with pytest.raises(BinaryError) as caught:
        read_device_code(binary, elfkit.reader(tmp_path / "bin"))
    assert "stand-in" in caught.value.because


# Classes -----------------------------------------------------------------------------------

NATIVE, FAMILY, PTX, NONE = KernelClass


@pytest.mark.parametrize(
    ("arch", "target", "expected"),
    [
        ("sm_121a", "12.1a", NATIVE),
        ("sm_121f", "12.1a", NATIVE),
        ("sm_121", "12.1a", NATIVE),
        ("sm_121", "12.1", NATIVE),
        ("sm_121a", "12.1", NATIVE),  # the suffix says what to compile for, not what the card is
        ("sm_120", "12.1a", FAMILY),
        ("sm_120f", "12.1a", FAMILY),
        ("sm_120a", "12.1a", NONE),
        ("sm_100f", "12.1a", NONE),
        ("sm_110", "12.1a", NONE),
        ("sm_90a", "12.1a", NONE),
        ("sm_80", "12.1a", NONE),
        ("sm_80", "8.6", FAMILY),
        ("sm_86", "8.0", NONE),
        ("sm_121", "12.0", NONE),
        ("sm_121f", "12.0", NONE),
        ("sm_90a", "9.0a", NATIVE),
        ("sm_103", "10.0", NONE),
        ("sm_100f", "10.3a", FAMILY),
        ("compute_80", "12.1a", PTX),
        ("compute_121a", "12.1a", PTX),
        ("compute_120f", "12.1a", PTX),
        ("compute_121", "12.0a", NONE),
        ("compute_120a", "12.1a", NONE),
        ("compute_90a", "12.1a", NONE),
        ("compute_100f", "12.1a", NONE),
        ("compute_103", "12.0", PTX),
        ("compute_130", "12.1a", NONE),
    ],
)  # fmt: skip
def test_what_runs_where(arch: str, target: str, expected: KernelClass) -> None:
    assert class_of(arch, target) is expected


@pytest.mark.parametrize("arch", ["sm_", "sm_121x", "gfx942", "", "sm121a", "ptx_80"])
def test_an_unknown_architecture_is_not_guessed_at(arch: str) -> None:
    with pytest.raises(BinaryError):
        class_of(arch, "12.1a")
    with pytest.raises(BinaryError):
        class_of("sm_80", "Blackwell")


def test_each_kernel_counts_by_its_best_image() -> None:
    code = parse_dump(
        [elfkit.dump([*IMAGES, ("compute_120a", ["lost"]), ("sm_90", ["jit"]), ("compute_90", ["jit"])])]
    )
    tally = classify(code, "12.1a")
    assert tally == Tally(native=3, family=0, ptx=2, none=1)
    assert (tally.total, tally.useless, tally.count(PTX)) == (6, False, 2)
    assert classify(code, "12.0") == Tally(native=1, family=0, ptx=3, none=2), "120f is native there"
    assert Tally(1, 2, 3, 4) + Tally(4, 3, 2, 1) == Tally(5, 5, 5, 5)
    assert [group.examples for group in of_class(code, "12.1a", NONE)] == [("lost",)]
    hopper = parse_dump([elfkit.dump([("sm_90a", ["a", "b"])])])
    assert classify(hopper, "12.1a").useless
    assert not classify(hopper, "9.0a").useless
    assert not Tally().useless, "what has no kernels has none that cannot run"


# Floors ------------------------------------------------------------------------------------


def test_what_a_tag_promises() -> None:
    versions = {"libc.so.6": ("GLIBC_2.17", "GLIBC_2.34"), "libstdc++.so.6": ("GLIBCXX_3.4.21",)}
    assert over_platform("manylinux_2_28_aarch64", versions) == ["GLIBC_2.34"]
    assert over_platform("manylinux_2_34_aarch64", versions) == []
    assert over_platform("manylinux_2_33_aarch64", versions) == ["GLIBC_2.34"], "a tag without a policy"
    assert over_platform("manylinux_2_34_aarch64.manylinux_2_28_aarch64", versions) == ["GLIBC_2.34"]
    plus = {"libstdc++.so.6": ("GLIBCXX_3.4.29", "CXXABI_1.3.13")}
    assert over_platform("manylinux_2_28_x86_64", plus) == ["CXXABI_1.3.13", "GLIBCXX_3.4.29"]
    assert over_platform("manylinux_2_34_x86_64", plus) == []
    assert over_platform("manylinux_2_39_aarch64", {"libc.so.6": ("GLIBC_PRIVATE",)}) == ["GLIBC_PRIVATE"]
    assert over_platform("manylinux_2_28_aarch64", {"libcudart.so.13": ("libcudart.so.13",)}) == []
    assert over_platform("manylinux_2_5_aarch64", {"libc.so.6": ("GLIBC_2.17",)}) == ["GLIBC_2.17"]
    with pytest.raises(BinaryError, match="vax"):
        over_platform("manylinux_2_28_vax", versions)


def test_the_honest_tag() -> None:
    old, new = {"libc.so.6": ("GLIBC_2.17",)}, {"libc.so.6": ("GLIBC_2.32",)}
    start = "manylinux_2_28_aarch64"
    assert honest_platform(start, []) == start
    assert honest_platform(start, [old, old]) == start
    assert honest_platform(start, [old, new]) == "manylinux_2_34_aarch64"
    assert honest_platform("manylinux_2_35_x86_64", [new]) == "manylinux_2_35_x86_64"
    cxx = {"libstdc++.so.6": ("GLIBCXX_3.4.31",)}
    assert honest_platform(start, [new, cxx]) == "manylinux_2_39_aarch64"
    with pytest.raises(BinaryError, match="no platform tag"):
        honest_platform(start, [{"libc.so.6": ("GLIBC_2.99",)}])
    with pytest.raises(BinaryError, match="cannot be judged"):
        honest_platform("linux_aarch64", [old])


# Symbols -----------------------------------------------------------------------------------


@pytest.fixture
def surroundings(tmp_path: Path) -> Surroundings:
    """torch, a library that torch needs, and one of which only the name is known."""
    inner = elfkit.shared(
        tmp_path / "lib" / "libc10.so", "int inner(void) { return 1; }", "-Wl,-soname,libc10.so"
    )
    elfkit.shared(
        tmp_path / "lib" / "libtorch.so", "int inner(void); int outer(void) { return inner(); }",
        "-Wl,-soname,libtorch.so", inner,
    )  # fmt: skip
    return Surroundings.of([tmp_path / "lib"], ["libcublas.so.13", "libc10.so"])


def stand_in(folder: Path, soname: str) -> Path:
    return elfkit.shared(folder / "stand-ins" / soname, "int nothing_of_the_kind;", f"-Wl,-soname,{soname}")


def build(tmp_path: Path, body: str, *needed: Path) -> Path:
    return elfkit.shared(tmp_path / "extension.so", body, "-Wl,--no-as-needed", *needed)


def test_every_symbol_has_its_definer(tmp_path: Path, surroundings: Surroundings) -> None:
    path = build(
        tmp_path,
        "#include <stdlib.h>\nvoid outer(void), inner(void), cuInit(void), cublasCreate_v2(void),"
        " PyErr_Clear(void), _ZNSolsEPFRSoS_E(void), _ZN10__cxxabiv120__si_class_type_infoD2Ev(void),"
        " _Unwind_Resume_or_Rethrow(void);\n"
        "extern void hook(void) __attribute__((weak));\n"
        "void f(void) { outer(); inner(); cuInit(); cublasCreate_v2(); PyErr_Clear(); _ZNSolsEPFRSoS_E();"
        " _ZN10__cxxabiv120__si_class_type_infoD2Ev(); _Unwind_Resume_or_Rethrow(); abort();"
        " if (hook) hook(); }",
        surroundings.libraries["libtorch.so"], stand_in(tmp_path, "libcuda.so.1"),
        stand_in(tmp_path, "libcublas.so.13"), stand_in(tmp_path, "libstdc++.so.6"),
        stand_in(tmp_path, "libgcc_s.so.1"),
    )  # fmt: skip
    elf = read_elf(path)
    found = resolve(elf, surroundings, python="stable-abi")
    assert (found.unresolved, found.stable_abi) == ((), (3, 2))
    assert unprovided(elf, surroundings) == ()


@pytest.mark.parametrize(
    ("symbol", "python"),
    [
        ("nobody", "stable-abi"),
        ("cuInit", "stable-abi"),  # libcuda is not needed here
        ("cublasCreate_v2", "stable-abi"),  # nor is libcublas
        ("_ZNSolsEPFRSoS_E", "stable-abi"),  # nor is libstdc++
        ("_PyObject_GC_New_private", "stable-abi"),
        ("PyDict_GetItemRef_of_the_future", "stable-abi"),
        ("PyErr_Clear", "none"),
    ],
)
def test_a_symbol_without_a_definer_is_named(tmp_path, surroundings, symbol, python):
    path = build(
        tmp_path,
        f"void {symbol}(void); void f(void) {{ {symbol}(); }}",
        surroundings.libraries["libtorch.so"],
    )
    assert resolve(read_elf(path), surroundings, python=python).unresolved == (symbol,)  # type: ignore[arg-type]


def test_a_private_name_of_python_is_fine_for_one_python_only(tmp_path, surroundings):
    elf = read_elf(build(tmp_path, "void _PyLong_AsInt(void); void f(void) { _PyLong_AsInt(); }"))
    assert resolve(elf, surroundings, python="one-version").unresolved == ()
    assert resolve(elf, surroundings, python="stable-abi").unresolved == ("_PyLong_AsInt",)
    data = read_elf(build(tmp_path, "extern int _Py_NoneStruct; int *f(void) { return &_Py_NoneStruct; }"))
    assert resolve(data, surroundings, python="stable-abi").unresolved == (), (
        "private by name, and in the ABI"
    )


def test_the_stable_abi_has_an_age(tmp_path: Path, surroundings: Surroundings) -> None:
    elf = read_elf(build(tmp_path, "void PyBuffer_Release(void); void f(void) { PyBuffer_Release(); }"))
    assert resolve(elf, surroundings, python="stable-abi").stable_abi == (3, 11)
    assert resolve(elf, surroundings, python="one-version").stable_abi is None


def test_a_version_that_the_library_lacks(tmp_path: Path) -> None:
    script = tmp_path / "map"
    libraries = {}
    for name, version in (("old", "V_1"), ("new", "V_2")):
        script.write_text(f"{version} {{ global: thing; local: *; }};")
        libraries[name] = elfkit.shared(
            tmp_path / name / "libthing.so.1", "int thing(void) { return 1; }",
            f"-Wl,--version-script={script}", "-Wl,-soname,libthing.so.1",
        )  # fmt: skip
    path = build(tmp_path, "int thing(void); int f(void) { return thing(); }", libraries["new"])
    here, there = (Surroundings({"libthing.so.1": libraries[name]}) for name in ("new", "old"))
    assert resolve(read_elf(path), here, python="none").unresolved == ()
    assert resolve(read_elf(path), there, python="none").unresolved == ("thing@V_2",)


def test_a_library_that_nobody_brings(tmp_path: Path, surroundings: Surroundings) -> None:
    path = build(
        tmp_path, "int a;", stand_in(tmp_path, "libmystery.so.3"), stand_in(tmp_path, "libcublas.so.13")
    )
    assert unprovided(read_elf(path), surroundings) == ("libmystery.so.3",)


# All of it, once ---------------------------------------------------------------------------


def test_a_binary_is_looked_into_only_once(tmp_path: Path, store: Store) -> None:
    binary = elfkit.shared(tmp_path / "a.so", device=elfkit.device(IMAGES))
    program = elfkit.reader(tmp_path / "bin")
    found = Inspector(store, lambda: program).inspect("d" * 64, lambda: binary)
    assert found == inspect(binary, program)

    def never() -> Path:
        raise AssertionError("it is known")

    assert Inspector(store, never).inspect("d" * 64, never) == found
    with pytest.raises(AssertionError, match="it is known"):
        Inspector(store, never).inspect("e" * 64, never)
    for record in store.records.glob("inspection/*/*.json"):
        record.write_text('{"elf": 1}')
    assert Inspector(store, lambda: program).inspect("d" * 64, lambda: binary) == found, "a damaged record"


# Extensions without code for the card itself are named, with how the card runs them -------


def extension(**arches: int) -> Extension:
    return Extension(target="_C", key="k", sha256="0" * 64, size=1, arches=arches)


@pytest.mark.parametrize(
    ("code", "arch", "consequence"),
    [
        ({"sm_80": 52, "compute_80": 52}, "9.0a", "compiles it from PTX when it is first used"),
        ({"sm_80": 52, "compute_80": 52}, "12.1a", "compiles it from PTX when it is first used"),
        ({"sm_120f": 4}, "12.1a", "the card runs code for its family"),
        ({"sm_90a": 4}, "12.1a", "nothing of it runs on the card"),
        ({"sm_121a": 52}, "12.1a", ""),
        ({"sm_121a": 70, "sm_89": 1, "compute_89": 1}, "12.1a", ""),
        ({"sm_90": 3}, "9.0a", ""),
        ({}, "12.1a", ""),
    ],
)
def test_what_lacks_code_for_the_card_is_told_with_how_it_runs(code, arch, consequence):
    told = not_native(code, arch)
    assert bool(told) == bool(consequence)
    assert told.endswith(consequence)
    assert not told or f"makes {', '.join(sorted(code))} of it and nothing for {arch}" in told


def test_only_extensions_without_code_for_the_card_are_named() -> None:
    extensions = {"fa2": extension(sm_80=52, compute_80=52), "ours": extension(sm_90a=8), "host": extension()}
    assert list(foreign_extensions(extensions, "9.0a")) == ["fa2"]
