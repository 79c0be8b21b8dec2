"""Which extensions' units are compiled along with another's, and what is said before."""

from types import SimpleNamespace

import pytest
from kit import Recorder

from sparkwright.base.events import subscribe
from sparkwright.lock.native import ExtensionSpec
from sparkwright.native.model import Extension, SourceTree
from sparkwright.pipeline import kernels
from sparkwright.pipeline.kernels import CompileExtension
from sparkwright.pipeline.state import BuildState

SPECS = {
    "host": ExtensionSpec(member="vllm/host.abi3.so", host_only=True),
    "moe": ExtensionSpec(member="vllm/moe.abi3.so"),
    "fa2": ExtensionSpec(member="vllm/fa2.abi3.so"),
    "fa3": ExtensionSpec(member="vllm/fa3.abi3.so"),
    "old": ExtensionSpec(member="vllm/old.abi3.so"),
    "qutlass": ExtensionSpec(member="vllm/qutlass.abi3.so", sources=("qutlass",)),
    "host2": ExtensionSpec(member="vllm/host2.abi3.so", host_only=True),
}
CODE = {"fa2": ("sm_80",), "moe": ("sm_121a",)}


def extension(name: str) -> Extension:
    return Extension(target=name, key=name, sha256="0" * 64, size=1, arches={})


def test_those_with_device_code_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def build(_builder: object, _inputs: object, name: str, *, beside: list[str]) -> Extension:
        asked.append((name, beside))
        return extension(name)

    units = {name: [SimpleNamespace(arches=CODE.get(name, ()))] for name in SPECS}
    configured = SimpleNamespace(configuration=SimpleNamespace(units_of=units.__getitem__))
    stored = {"old": extension("old")}
    monkeypatch.setattr("sparkwright.native.build.build_extension", build)
    monkeypatch.setattr("sparkwright.native.build.configured", lambda *_: configured)
    monkeypatch.setattr("sparkwright.native.build.find_extension", lambda _, key: stored.get(key))
    monkeypatch.setattr(kernels, "builder_of", lambda _: SimpleNamespace(key=lambda _, name: name))
    monkeypatch.setattr(kernels, "inputs_of", lambda *_: None)
    native = SimpleNamespace(extensions=SPECS, sources={"qutlass": SimpleNamespace(mount="")})
    job = SimpleNamespace(
        native=native,
        store=None,
        target=SimpleNamespace(arch="12.1a"),
        options=SimpleNamespace(compiling=SimpleNamespace(isolate=False)),
    )
    missing = SourceTree(name="qutlass", tree="0" * 40, origin="", at_hand=False, missing="no git host")
    state = BuildState(report=object(), sources={"qutlass": missing}, toolchain=object())
    heard = Recorder()
    with subscribe(heard):
        for name in ("host", "moe", "fa2", "fa3", "host2"):
            CompileExtension(name).make(job, state)
    assert asked == [("host", []), ("moe", ["fa2", "fa3"]), ("fa2", []), ("fa3", []), ("host2", [])]
    assert [event["message"].partition(":")[0] for event in heard.of("warning")] == ["fa2"], "once, at first"
    assert list(state.extensions) == ["host", "moe", "fa2", "fa3", "host2"]
