"""Models are decoded by several threads at once, each of them for the first time."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sparkwright

FIRST_USES = '''
import sys
import threading
import types

import msgspec

from sparkwright.base import config

MODELS = """
from __future__ import annotations
import msgspec
class Part(msgspec.Struct):
    count: int = 1
    names: tuple[str, ...] = ()
class Whole(msgspec.Struct):
    name: str
    part: Part
    named: dict[str, Part]
    parts: tuple[Part, ...] = ()
"""
JSON = b'{"name":"x","part":{"count":2},"named":{"k":{"count":3}},"parts":[{"count":1}]}'
decode = eval(sys.argv[1])

sys.setswitchinterval(1e-6)
for number in range(int(sys.argv[2])):
    module = types.ModuleType(f"models{number}")
    sys.modules[module.__name__] = module
    exec(MODELS, module.__dict__)
    begin = threading.Barrier(3)

    def first() -> None:
        begin.wait()
        assert decode(JSON, module.Whole).part.count == 2

    threads = [threading.Thread(target=first) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
'''


def first_uses(decode: str, times: int = 200) -> subprocess.CompletedProcess[str]:
    """Let three threads decode models that were never decoded, by the expression *decode*."""
    command = [sys.executable, "-c", FIRST_USES, decode, str(times)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "decode",
    [
        "config.decode_json",
        "lambda data, model: config.convert(msgspec.json.decode(data), model)",
        "lambda data, model: config.json_decoder(model).decode(data)",
    ],
    ids=["decode_json", "convert", "json_decoder"],
)
def test_threads_decode_a_model_for_the_first_time(decode: str) -> None:
    done = first_uses(decode)
    assert (done.returncode, done.stderr) == (0, "")


def unguarded(source: str) -> list[int]:
    """Return the lines of *source* that let msgspec read a model in whichever thread is the first."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [(ast.unparse(call.func), call) for call in calls]
    return [
        call.lineno
        for name, call in named
        if name in {"msgspec.convert", "msgspec.json.Decoder"}
        or (name == "msgspec.json.decode" and (call.keywords or len(call.args) > 1))
    ]


def test_no_module_decodes_a_model_by_itself() -> None:
    folder = Path(sparkwright.__file__).parent
    config = folder / "base" / "config.py"
    assert unguarded(config.read_text())
    others = {path: path.read_text() for path in folder.rglob("*.py") if path != config}
    using = {path: unguarded(text) for path, text in others.items() if "msgspec." in text}
    assert len(using) > 20
    assert [path for path, found in using.items() if found] == []
