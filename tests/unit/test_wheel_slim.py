"""When a wheel can do without an extension: each proof beside the twin that breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import wheelkit

from sparkwright.native.inspection import Tally
from sparkwright.wheel.absence import called_namespaces, module_of, namespaces_in, prove_absence
from sparkwright.wheel.slim import plan_slim, python_members
from sparkwright.wheel.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

GUARDED = """
try:
    import vllm._x
    AVAILABLE = True
except ImportError:
    AVAILABLE = False
"""


def proved(*sources: str, module: str = "vllm._x", **named: str) -> bool:
    files = {f"vllm/m{number}.py": source.encode() for number, source in enumerate(sources)}
    files |= {f"vllm/{name.replace('_in_', '/')}.py": source.encode() for name, source in named.items()}
    found = prove_absence(module, files)
    assert found.proved == (not found.because)
    assert found.evidence or not found.proved
    return found.proved


@pytest.mark.parametrize(
    "copes",
    [
        "nothing = 1",
        GUARDED,
        "try:\n    from . import _x\nexcept ImportError as e:\n    log(e)",
        "try:\n    from vllm import _x as y, other\nexcept (OSError, ImportError):\n    y = None",
        "try:\n    import vllm._x\nexcept ModuleNotFoundError:\n    pass",
        "try:\n    import vllm._x\nexcept Exception:\n    pass",
        "try:\n    import vllm._x\nexcept:\n    pass",
        "try:\n    import vllm._x\nexcept OSError:\n    raise\nexcept ImportError:\n    pass",
        "with contextlib.suppress(ImportError):\n    import vllm._x",
        "with suppress(OSError, ImportError):\n    from vllm._x import f",
        "def f():\n    try:\n        import vllm._x\n    except ImportError:\n        return None",
        "try:\n    m = importlib.import_module('vllm._x')\nexcept ImportError:\n    m = None",
        "if TYPE_CHECKING:\n    from vllm._x import f",
        "if importlib.util.find_spec('vllm._x'):\n    pass",
        "'''Needs vllm._x to be fast.'''",
        "raise_error('the extension vllm._x is missing')",
        GUARDED + "if AVAILABLE:\n    import vllm._x",
        GUARDED + "if not AVAILABLE:\n    f = None\nelse:\n    from vllm._x import f",
        GUARDED + "if AVAILABLE and fast:\n    register('_x::op')",
        GUARDED + "def ok():\n    return AVAILABLE\nif ok():\n    import vllm._x",
        GUARDED + "def ok():\n    'Doc.'\n    if not AVAILABLE:\n        return False, 'no'\n"
        "    return True, None\nif ok()[0]:\n    from vllm._x import f",
        GUARDED + "def f():\n    if not AVAILABLE:\n        raise RuntimeError\n    import vllm._x",
        GUARDED + "def f():\n    return torch.ops._x.run()",
        GUARDED + "f = (lambda: torch.ops._x.run()) if AVAILABLE else None",
        GUARDED + "g = torch.ops._x.run if AVAILABLE else None",
        "if hasattr(torch.ops._x, 'run'):\n    @register_fake('_x::run')\n    def fake(): ...",
        "if hasattr(torch.ops, '_x') and hasattr(torch.ops._x, 'run'):\n    run = torch.ops._x.run",
        "try:\n    from vllm import _x\nexcept ImportError:\n    _x = None\nfast = _x is not None",
        "try:\n    from vllm import _x\n    _x.setup()\nexcept ImportError:\n    pass",
        "try:\n    from vllm import _x\nexcept ImportError:\n    pass\nelse:\n    _x.setup()",
    ],
)  # fmt: skip
def test_code_that_copes(copes: str) -> None:
    assert proved(copes)


@pytest.mark.parametrize(
    "breaks",
    [
        "try:\n    from . import _x\nexcept ModuleNotFoundError:\n    pass",  # it is a plain ImportError
        "try:\n    import vllm._x\nexcept OSError:\n    pass",
        "try:\n    import vllm._x\nexcept ImportError:\n    raise",
        "try:\n    import vllm._x\nexcept ImportError as e:\n    if strict:\n        raise Error from e",
        "try:\n    import vllm._x\nfinally:\n    pass",
        "try:\n    pass\nexcept ImportError:\n    import vllm._x",
        "with open('x'):\n    import vllm._x",
        "with contextlib.suppress(OSError):\n    import vllm._x",
        "def f():\n    import vllm._x",
        "def f():\n    from vllm._x import g",
        "try:\n    def f():\n        import vllm._x\nexcept ImportError:\n    pass",
        "def f():\n    importlib.import_module('vllm._x')",
        "m = importlib.import_module(f'vllm._x{suffix}')",
        "def f():\n    return torch.ops._x.run()",  # a module that finds out nothing
        "NAME = 'vllm._x'",
        "load('vllm/_x.abi3.so')",
        "x = getattr(torch.ops, '_x')",
        GUARDED + "if fast:\n    def f():\n        import vllm._x",
        GUARDED + "def f():\n    if AVAILABLE:\n        pass\n    import vllm._x",
        GUARDED + "def f():\n    if not AVAILABLE:\n        log()\n    import vllm._x",
        GUARDED + "def ok():\n    return compute()\ndef f():\n    if ok():\n        import vllm._x",
        GUARDED + "def f(AVAILABLE):\n    if AVAILABLE:\n        import vllm._x",
        GUARDED + "def on():\n    global AVAILABLE\n    AVAILABLE = True\n"
        "def f():\n    if AVAILABLE:\n        import vllm._x",
        GUARDED + "AVAILABLE = True\ndef f():\n    if AVAILABLE:\n        import vllm._x",
        GUARDED + "AVAILABLE |= fast\ndef f():\n    if AVAILABLE:\n        import vllm._x",
        "try:\n    from vllm import _x\nexcept ImportError:\n    pass\n_x.setup()",
        "try:\n    from vllm import _x as y\nexcept ImportError:\n    pass\nclass A(y.Base): ...",
    ],
)  # fmt: skip
def test_code_that_does_not(breaks: str) -> None:
    assert not proved(breaks)
    assert proved(breaks.replace("_x", "_y")), "the twin speaks of another module"


def test_what_needs_the_extension_is_missing_too() -> None:
    code = "import torch\nimport vllm._x\nops = torch.ops._x\n"
    run = "from vllm.needs import run\n"
    assert proved(needs=code, user="try:\n    import vllm.needs\nexcept ImportError:\n    pass")
    assert proved(needs=code, user=GUARDED + "if AVAILABLE:\n    " + run)
    assert proved(needs=code, user=GUARDED + "if AVAILABLE:\n    from .needs import run")
    assert not proved(needs=code, user="def f():\n    " + run)
    # Nobody who expects it to fail: it may still be imported by a name that is put together.
    assert not proved(needs=code)
    assert not proved(needs=code, user=run)
    assert not proved(needs=code, user=run, late="def f():\n    import vllm.user")
    assert not proved(needs=code, user="REGISTRY = ['vllm.needs:run']")
    guarded = "try:\n    import vllm.needs\nexcept ImportError:\n    pass"
    assert proved(needs=code, user="WORDS = ['needs']", other=guarded)
    assert not proved(needs=code, user="WORDS = ['vllm.needs']", other=guarded)


def test_a_package_that_needs_it_takes_its_modules_along() -> None:
    part = "def f():\n    import vllm._x"
    assert not proved(pack_in_part=part)
    package = {"pack_in___init__": "import vllm._x", "pack_in_part": part}
    part = "from vllm.pack.part import y"
    assert not proved(**package, user=f"def f():\n    {part}")
    assert proved(**package, user=f"try:\n    {part}\nexcept ImportError:\n    pass")


def test_relative_imports_reach_as_far_as_their_dots() -> None:
    assert not proved(sub_in_m="def f():\n    from .. import _x")
    assert proved(sub_in_m="def f():\n    from . import _x"), "which is vllm.sub._x"
    assert proved(sub_in_m="def f():\n    from ... import _x"), "which leads out of vllm"
    assert not proved(sub_in_deep_in_m="def f():\n    from ... import _x")
    assert not proved(sub_in_m="def f():\n    from .._x import run")


def test_what_cannot_be_read_proves_nothing() -> None:
    assert not proved("import vllm._x (")
    assert proved("import vllm._y (")


def test_op_namespaces_by_another_name() -> None:
    files = {"vllm/a.py": b"def f():\n    return torch.ops._ops_of_x.run()\n"}
    assert prove_absence("vllm._x", files).proved
    assert not prove_absence("vllm._x", files, namespaces=["_ops_of_x"]).proved
    called = called_namespaces(files)
    assert called == {"_ops_of_x"}
    assert namespaces_in(b"\0_ops_of_x\0", called) == {"_ops_of_x"}
    assert namespaces_in(b"\0_ops_of_x_and_more\0", called) == frozenset()


@pytest.mark.parametrize(
    ("member", "module"),
    [
        ("vllm/_C.abi3.so", "vllm._C"),
        ("vllm/third_party/d/_C.cpython-312-aarch64-linux-gnu.so", "vllm.third_party.d._C"),
        ("vllm/pack/__init__.py", "vllm.pack"),
        ("vllm/a/b.py", "vllm.a.b"),
    ],
)
def test_the_module_of_a_member(member: str, module: str) -> None:
    assert module_of(member) == module


# Plans -------------------------------------------------------------------------------------

USELESS, MIXED, HOST = Tally(none=5), Tally(native=1, none=4), Tally()


def test_only_what_is_useless_and_not_missed_is_left_out() -> None:
    python = {"vllm/a.py": GUARDED.encode(), "vllm/b.py": b"def f():\n    import vllm._missed\n"}
    binaries = {
        "vllm/_x.abi3.so": USELESS,
        "vllm/_missed.abi3.so": USELESS,
        "vllm/_unmentioned.abi3.so": USELESS,
        "vllm/_mixed.abi3.so": MIXED,
        "vllm/_host.abi3.so": HOST,
    }
    asked: list[str] = []

    def namespaces(member: str, called: frozenset[str]) -> frozenset[str]:
        asked.append(member)
        return called

    plan = plan_slim(python, binaries, namespaces, "12.1a")
    assert [one.member for one in plan.left_out] == ["vllm/_unmentioned.abi3.so", "vllm/_x.abi3.so"]
    assert plan.left_out[1].because == "none of its 5 kernels runs on 12.1a"
    assert plan.left_out[1].evidence == ("vllm/a.py:3: the import may fail",)
    assert list(plan.kept) == ["vllm/_missed.abi3.so"]
    assert "vllm/b.py:2" in plan.kept["vllm/_missed.abi3.so"]
    assert asked == ["vllm/_missed.abi3.so", "vllm/_unmentioned.abi3.so", "vllm/_x.abi3.so"]


def test_ops_that_only_the_binary_tells_of_count() -> None:
    python = {"vllm/a.py": GUARDED.encode(), "vllm/b.py": b"def f():\n    return torch.ops.secret.run()\n"}
    for binary, left_out in ((b"\0secret\0", 0), (b"\0public\0", 1)):

        def namespaces(_: str, called: frozenset[str], binary: bytes = binary) -> frozenset[str]:
            return namespaces_in(binary, called)

        plan = plan_slim(python, {"vllm/_x.abi3.so": USELESS}, namespaces, "12.1a")
        assert len(plan.left_out) == left_out


def test_the_python_of_a_wheel_is_upstreams_and_the_merges(tmp_path: Path) -> None:
    changes = {"vllm/core.py": b"new", "vllm/extra.py": b"x", "vllm/old.py": None, "tests/test_a.py": b"t"}
    with open_source(wheelkit.upstream_wheel(tmp_path)) as upstream:
        found = python_members(upstream, changes)
    assert found["vllm/core.py"] == b"new"
    assert found["vllm/extra.py"] == b"x"
    assert found["vllm/config/__init__.py"] == b"CACHE = 'auto'\n"
    assert {"vllm/old.py", "tests/test_a.py", "vllm/_C.abi3.so"} & set(found) == set()


# Modules that refuse ------------------------------------------------------------------------

TWO = (
    "try:\n    from . import _x\n    X = True\nexcept ImportError:\n    X = False\n"
    "try:\n    from . import _z\n    Z = True\nexcept ImportError:\n    Z = False\n"
)
FLAGS = "from vllm.two import X, Z\n"
EXPECTS = "try:\n    import vllm.user\nexcept ImportError:\n    pass"


def holds(*, present: bool = True, **named: str) -> bool:
    """Whether the code in *named* copes without ``vllm._x``, with ``vllm._z`` *present* or perhaps not."""
    files = {f"vllm/{name}.py": source.encode() for name, source in named.items()}
    return prove_absence("vllm._x", files, present={"vllm._z"} if present else ()).proved


@pytest.mark.parametrize(
    "user",
    [
        FLAGS + "if not (X or Z):\n    raise ImportError",
        FLAGS + "if not X and not Z:\n    raise ImportError",
        "from .two import X, Z as other\nif not X:\n    if not other:\n        raise ImportError",
        FLAGS + "assert X or Z",
        FLAGS + "assert Z",
        "from vllm.two import X\nif strict:\n    raise ImportError",
        "from vllm.two import X\ntry:\n    if not X:\n        raise ImportError\nexcept Exception:\n    pass",
        "from vllm.two import X\ntry:\n    check(X)\nexcept OSError:\n    raise",
        "from vllm.two import X\ndef f():\n    if not X:\n        raise RuntimeError",
        "from vllm.other import X\nif not X:\n    raise ImportError",
    ],
)
def test_modules_that_do_not_refuse(user: str) -> None:
    assert holds(two=TWO, user=user)


@pytest.mark.parametrize(
    "user",
    [
        FLAGS + "if not X:\n    raise ImportError",
        FLAGS + "if not (X and Z):\n    raise ImportError",
        FLAGS + "assert X",
        FLAGS + "assert X or unknown",
        FLAGS + "X = False\nif not (X or Z):\n    raise ImportError\nZ = False",
        "from vllm.two import X as fast\nif strict and not fast:\n    raise ImportError",
        "import vllm.two as two\nif not two.X:\n    raise ImportError",
        "from vllm.two import is_supported\nif not is_supported(3):\n    raise ImportError",
    ],
)
def test_modules_that_refuse(user: str) -> None:
    assert not holds(two=TWO, user=user)
    assert holds(two=TWO, user=user, third=EXPECTS), "unless somebody expects that"


def test_a_module_that_refuses_by_its_own_flags() -> None:
    refuses = TWO + "if not X:\n    raise ImportError\n"
    assert not holds(two=refuses)
    assert holds(two=refuses, third="try:\n    import vllm.two\nexcept ImportError:\n    pass")
    assert holds(two=TWO + "if not Z:\n    raise ImportError\n")
    assert not holds(two=TWO + "if not Z:\n    raise ImportError\n", present=False)
    assert not holds(two=TWO, user=FLAGS + "if not (X or Z):\n    raise ImportError", present=False)


def test_one_try_for_both_fails_as_a_whole() -> None:
    both = "try:\n    from . import _z\n    from . import _x\n    OK = 1\nexcept ImportError:\n    OK = 0\n"
    assert holds(two=both + "if OK:\n    from vllm._x import run")
    assert not holds(two=both + "if not OK:\n    from vllm._x import run")


def test_flags_are_heard_of_from_those_who_pass_them_on() -> None:
    passes = "from .two import X\n"
    refuses = "from vllm.passes import X as fast\nif not fast:\n    raise ImportError\n"
    assert not holds(two=TWO, passes=passes, user=refuses)
    assert holds(two=TWO, passes=passes, user=refuses.replace("not fast", "fast"))
    assert holds(two=TWO, passes=passes, user=refuses, third=EXPECTS)


def test_two_that_stand_in_for_each_other_are_not_both_left_out() -> None:
    python = {
        "vllm/two.py": TWO.encode(),
        "vllm/user.py": (FLAGS + "if not (X or Z):\n    raise ImportError").encode(),
    }
    x, z = "vllm/_x.abi3.so", "vllm/_z.abi3.so"

    def left_out(**tallies: Tally) -> list[str]:
        binaries = {x: tallies["x"], z: tallies["z"]}
        return [one.member for one in plan_slim(python, binaries, lambda *_: frozenset(), "12.1a").left_out]

    assert left_out(x=USELESS, z=MIXED) == [x]
    assert left_out(x=MIXED, z=USELESS) == [z]
    assert left_out(x=USELESS, z=USELESS) == []
