"""Names, versions, RECORD and the classification of paths."""

from typing import Any

import pytest
import wheelkit
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from sparkwright.base.errors import WheelError
from sparkwright.wheel.names import (
    header,
    local_version,
    parse_name,
    stamp_metadata,
    stamp_version_file,
    stamp_wheel,
    stated_version,
)
from sparkwright.wheel.source import RecordEntry, classify, entry_of, format_record, machine_of, parse_record

DIGEST = "1a2b3c4d" * 8


@pytest.mark.parametrize(
    ("patchset", "digest", "fields", "expected"),
    [
        ("spark", DIGEST, {}, "spark.0.1a2b3c4d"),
        ("GB10 / D-Flash_2", DIGEST, {"revision": 12}, "gb10.d.flash.2.12.1a2b3c4d"),
        ("--x--", DIGEST, {"revision": 12}, "x.12.1a2b3c4d"),
        ("spark", "00001234" + DIGEST, {"revision": 12}, "spark.12.000012341a"),
        ("spark", "12345678", {"revision": 12}, "spark.12.12345678"),
        ("spark", DIGEST, {"revision": 3, "card": "sm100a"}, "spark.sm100a.3.1a2b3c4d"),
        ("spark", DIGEST, {"revision": 3, "arch": "sm121a"}, "spark.3.sm121a.1a2b3c4d"),
        ("spark", DIGEST, {"arch": "sm121a", "compiled": 5}, "spark.0.mixed.5.sm121a.1a2b3c4d"),
        ("spark", DIGEST, {"card": "sm100a", "compiled": 5}, "spark.mixed.sm100a.0.5.1a2b3c4d"),
    ],
)
def test_local_versions(patchset: str, digest: str, fields: dict[str, Any], expected: str) -> None:
    assert local_version("0.24.0", patchset, digest, **fields) == f"0.24.0+{expected}"


@pytest.mark.parametrize("digest", ["ffffffff" * 8, "99999999" * 7 + "aaaaaaaa", "00000000" * 7 + "f0000000"])
@pytest.mark.parametrize("card", ["arch", "card"])
def test_the_more_kernels_are_compiled_the_newer_is_a_wheel_of_one_revision(card: str, digest: str) -> None:
    def version(revision: int, digest: str, compiled: int | None, stock: str = "") -> Version:
        made = local_version(
            "0.24.0", "spark", digest, revision=revision, compiled=compiled, **{card: "sm121a"}
        )
        return Version(made + stock)

    upstream = Version(local_version("0.24.0", "spark", "ffffffff", revision=3))
    few = version(3, "ffffffff", 2, ".stock.c.fa2.moe.qutlass")
    some = version(3, DIGEST, 10, ".stock.fa2")
    assert few < some < version(3, digest, None)
    assert (upstream < few) is (card == "arch"), "kernels for another card are never preferred"
    assert some < version(4, digest, 1, ".stock.c")


DIGESTS = st.text("0123456789abcdef", min_size=8, max_size=8) | st.text("0123456789", min_size=8, max_size=8)
CARDS = st.sampled_from(["sm75", "sm90a", "sm100a", "sm120f"])


@given(DIGESTS, DIGESTS, st.integers(0, 10**6), st.integers(1, 100), st.just("") | CARDS)
def test_a_higher_revision_is_newer_whatever_the_digests_are(one, other, revision, more, card):
    old, new = (
        Version(local_version("0.24.0", "spark", digest, revision=number, card=card))
        for digest, number in ((one, revision), (other, revision + more))
    )
    assert old < new


@given(DIGESTS, DIGESTS, st.integers(0, 10**6), st.integers(0, 10**6), CARDS)
def test_the_usual_card_comes_before_another_and_a_revision_before_none(one, other, revision, later, card):
    ours = Version(local_version("0.24.0", "spark", one, revision=revision))
    assert ours > Version(local_version("0.24.0", "spark", other, revision=later, card=card))
    if not other.isdecimal():  # versions before revisions; those with eight decimal digits were numbers
        assert ours > Version(f"0.24.0+spark.{other}")


@given(st.text(min_size=1), st.text("0123456789abcdef", min_size=8, max_size=64), st.integers(min_value=0))
def test_every_version_is_normal_and_later_than_the_release(patchset, digest, revision):
    try:
        version = local_version("0.24.0", patchset, digest, revision=revision)
    except WheelError:
        assert not any(letter.isascii() and letter.isalnum() for letter in patchset.lower())
    else:
        assert str(Version(version)) == version
        assert Version(version) > Version("0.24.0")
        assert parse_name(f"vllm-{version}-cp38-abi3-linux_aarch64.whl").version == version


@pytest.mark.parametrize(
    ("release", "patchset", "digest"),
    [
        ("0.24.0+cpu", "spark", DIGEST),
        ("0.24.0", "///", DIGEST),
        ("0.24.0", "spark", "xyz"),
        ("one", "spark", DIGEST),
    ],
)
def test_versions_that_cannot_be_made(release: str, patchset: str, digest: str) -> None:
    with pytest.raises(WheelError):
        local_version(release, patchset, digest)


def test_a_name_is_taken_apart_and_put_together() -> None:
    text = "vllm-0.24.0-1-py3.cp38-abi3-manylinux2014_aarch64.manylinux_2_28_aarch64.whl"
    name = parse_name(text)
    assert name.filename == text
    assert name.tags == (
        "py3-abi3-manylinux2014_aarch64", "py3-abi3-manylinux_2_28_aarch64",
        "cp38-abi3-manylinux2014_aarch64", "cp38-abi3-manylinux_2_28_aarch64",
    )  # fmt: skip
    assert name.machine == "aarch64"
    assert name.with_version("0.24.0+x.1").dist_info == "vllm-0.24.0+x.1.dist-info"


@pytest.mark.parametrize("version", ["0.24.0-x", "0.24.0+X.1", "0.24.0+x_1", "../0.1", ""])
def test_a_version_that_is_not_normal_is_refused(version: str) -> None:
    with pytest.raises(WheelError):
        parse_name("vllm-0.24.0-cp38-abi3-linux_aarch64.whl").with_version(version)


def test_metadata_is_stamped_in_its_header_only() -> None:
    stamped = stamp_metadata(wheelkit.metadata(), "0.24.0+spark.1")
    assert stamped == wheelkit.metadata("0.24.0+spark.1")
    assert header(stamped, "version") == ["0.24.0+spark.1"]
    assert header(stamped, "Requires-Dist") == ["regex", "torch==2.11.0", 'pandas; extra == "bench"']


@pytest.mark.parametrize("head", [b"Name: vllm\n\nVersion: 1\n", b"Version: 1\nVersion: 2\n\n"])
def test_metadata_with_no_or_two_versions_is_refused(head: bytes) -> None:
    with pytest.raises(WheelError):
        stamp_metadata(head, "1")


def test_wheel_gets_the_tags_of_the_file_name() -> None:
    old = b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: a-b-c\nTag: d-e-f\n\n"
    assert stamp_wheel(old, ["g-h-i", "j-k-l"]) == (
        b"Wheel-Version: 1.0\nGenerator: sparkwright\nRoot-Is-Purelib: false\nTag: g-h-i\nTag: j-k-l\n\n"
    )
    with pytest.raises(WheelError):
        stamp_wheel(b"Wheel-Version: 1.0\nGenerator: x\n\n", ["g-h-i"])


def test_the_version_file_keeps_all_but_its_two_literals() -> None:
    version = "0.24.0+spark.1a2b3c4d"
    stamped = stamp_version_file(wheelkit.VERSION_PY, version)
    changed = [
        (old, new)
        for old, new in zip(wheelkit.VERSION_PY.splitlines(), stamped.splitlines(), strict=True)
        if old != new
    ]
    assert changed == [
        (b"__version__ = version = '0.24.0'", b"__version__ = version = '0.24.0+spark.1a2b3c4d'"),
        (
            b"__version_tuple__ = version_tuple = (0, 24, 0)",
            b"__version_tuple__ = version_tuple = (0, 24, 0, 'spark.1a2b3c4d')",
        ),
    ]
    assert stated_version(stamped) == (version, (0, 24, 0, "spark.1a2b3c4d"))


def test_older_and_odder_version_files_are_stamped_too() -> None:
    source = (
        "# ünï\n__version__ = 'a'; version = \"0.1\"\nversion_tuple = (\n    0,\n    1,\n)\n"
        "__version_tuple__ = (0,)\n"
    )
    stamped = stamp_version_file(source.encode(), "2.0rc1.dev3+x")
    names: dict[str, object] = {}
    exec(compile(stamped, "v", "exec"), names)  # noqa: S102 - what an import would do
    assert names["__version__"] == names["version"] == "2.0rc1.dev3+x"
    assert names["__version_tuple__"] == names["version_tuple"] == (2, 0, "rc1", "dev3", "x")


@pytest.mark.parametrize(
    "source",
    [
        b"__version__ = '1'\n",
        wheelkit.VERSION_PY.replace(b"= '0.24.0'", b"= str(24)"),
        wheelkit.VERSION_PY.replace(b"(0, 24, 0)", b"tuple([0])"),
        wheelkit.VERSION_PY + b"version = '2'\n",
        b"version = \n",
    ],
)
def test_a_version_file_of_unknown_shape_is_refused(source: bytes) -> None:
    with pytest.raises(WheelError):
        stamp_version_file(source, "1.0")


def test_record_reads_back_what_it_wrote() -> None:
    entries = [entry_of('odd,"name".py', b"x"), entry_of("b", b""), RecordEntry("v.dist-info/RECORD")]
    assert list(parse_record(format_record(entries)).values()) == entries
    assert entries[1].digest == "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    assert entries[1].sha256 == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    "data", [b"a,b\n", b"a,sha256=x,one\n", b"a,,\na,,\n", b"\xff,,\n", b'a,"unclosed,1\n' + b"\0"]
)
def test_a_malformed_record_is_refused(data: bytes) -> None:
    with pytest.raises(WheelError):
        parse_record(data)


@pytest.mark.parametrize("digest", ["", "md5=abc", "sha256=abc", "sha256=!!"])
def test_a_digest_that_is_no_sha256_is_refused(digest: str) -> None:
    with pytest.raises(WheelError):
        _ = RecordEntry("a", digest, 1).sha256


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("csrc/ops.cu", "native"), ("csrc/quantization/README.md", "native"), ("cmake/utils.cmake", "native"),
        ("CMakeLists.txt", "native"), ("setup.py", "native"), ("rust/src/lib.rs", "native"),
        ("build_rust.sh", "native"), ("tools/build_rust.py", "native"), ("rust-toolchain.toml", "native"),
        ("requirements/build/cuda.txt", "native"), ("requirements/cuda.txt", "metadata"),
        ("requirements/common.txt", "metadata"), ("requirements/test/cuda.in", "not-shipped"),
        ("requirements/lint.txt", "not-shipped"), ("pyproject.toml", "metadata"), ("MANIFEST.in", "metadata"),
        ("LICENSE", "metadata"), ("vllm/envs.py", "shipped"), ("vllm/csrc/x.py", "shipped"),
        ("tests/setup.py", "not-shipped"), ("docs/CMakeLists.txt", "not-shipped"),
        ("vllm_helper.py", "not-shipped"), (".github/workflows/x.yml", "not-shipped"),
    ],
)  # fmt: skip
def test_classification(path: str, kind: str) -> None:
    assert classify(path) == kind


def test_the_machine_of_an_elf_file() -> None:
    assert machine_of(wheelkit.elf("aarch64")) == "aarch64"
    assert machine_of(wheelkit.elf("x86_64")) == "x86_64"
    big = bytearray(wheelkit.elf()[:20])
    big[5], big[18:20] = 2, b"\0\x16"
    assert machine_of(bytes(big)) == "unknown (22)"
    assert machine_of(b"\x7fELF") == "damaged"
