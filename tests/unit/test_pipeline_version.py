"""Versions of native wheels that take some extensions from upstream's wheel, as built and as audited."""

import functools
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from sparkwright.pipeline.record import native_version, version_of
from sparkwright.wheel.names import local_version

EXTENSIONS = ("_C", "_moe_C", "_vllm_fa2_C", "_qutlass_C", "cumem_allocator")
BASE = "0.24.0+spark.3."


def job_of(*, full: bool = False) -> Any:
    mixed = functools.partial(local_version, "0.24.0", "spark", "1a2b3c4d", revision=3, arch="sm121a")
    return SimpleNamespace(
        native=SimpleNamespace(
            extensions={name: SimpleNamespace(member=f"vllm/{name}.so") for name in EXTENSIONS}
        ),
        options=SimpleNamespace(full=full),
        mixed_version=lambda compiled: mixed(compiled=compiled),
    )


@pytest.mark.parametrize(
    ("stock", "left_out", "version"),
    [
        ((), (), f"{BASE}sm121a.1a2b3c4d"),
        (("_vllm_fa2_C",), (), f"{BASE}mixed.4.sm121a.1a2b3c4d.stock.fa2"),
        # One that is left out is neither compiled nor upstream's.
        (("_qutlass_C",), ("_qutlass_C",), f"{BASE}sm121a.1a2b3c4d"),
        (("_C", "_vllm_fa2_C", "_qutlass_C"), ("_qutlass_C",), f"{BASE}mixed.2.sm121a.1a2b3c4d.stock.c.fa2"),
    ],
)
def test_the_version_as_built_is_the_one_that_an_audit_expects(stock, left_out, version):
    job = job_of()
    upstream = {f"vllm/{name}.so": "no source" for name in stock if name not in left_out}
    state: Any = SimpleNamespace(
        stock_extensions=dict.fromkeys(stock, "no source"),
        attested={},
        binaries=SimpleNamespace(upstream=upstream),
    )
    assert version_of(job, state) == version
    # The audit counts in the wheel's record.
    compiled = len(EXTENSIONS) - len(stock)
    assert native_version(job, [name for name in stock if name not in left_out], compiled) == version


def test_an_attested_extension_is_never_one_of_the_pins() -> None:
    whole: Any = SimpleNamespace(stock_extensions={}, attested={"_moe_C": "2 of 2"}, binaries=None)
    assert version_of(job_of(), whole) == f"{BASE}mixed.5.sm121a.1a2b3c4d.attested.moe"
    whole.stock_extensions = {"_vllm_fa2_C": "no source"}
    assert version_of(job_of(), whole) == f"{BASE}mixed.4.sm121a.1a2b3c4d.attested.moe.stock.fa2"
    assert Version(version_of(job_of(), whole)) < Version(native_version(job_of(), ()))


def test_of_one_build_more_compiled_extensions_are_newer() -> None:
    names = list(EXTENSIONS)
    versions = [
        Version(native_version(job_of(), names[:count], len(names) - count))
        for count in range(len(names) + 1)
    ]
    assert versions == sorted(versions, reverse=True)
    assert len(set(versions)) == len(names) + 1
