"""Merges that are clean and wrong: each kind planted, beside a twin that only differs by what is wrong."""

from collections.abc import Callable

import pytest
from kit import DELETED, Scene

from sparkwright.merge.report import Outcome, OutcomeKind

FILE = "vllm/cache.py"
OTHER = "vllm/other.py"
MIDDLE = "".join(f"def middle_{number}():\n    return {number}\n\n\n" for number in range(6))
Files = "Mapping[str, str | FileEntry]"


def merged(scene: Scene, base: Files, target: Files, change: Files) -> Outcome:
    """The outcome of a carry that makes *change* of *base*, while upstream made *target* of it."""
    scene.base = dict(base)
    whole = {**base, **target}
    scene.target = {path: content for path, content in whole.items() if content is not DELETED}
    scene.carries.clear()
    scene.add("fix", change)
    (outcome,) = scene.merge().outcomes
    return outcome


def both_ends(scene: Scene, top: str, bottom: str, *, text: str = MIDDLE, head: str = "") -> Outcome:
    """Upstream adds *top* before the *text* of one file, the carry adds *bottom* behind it."""
    base = head + text
    return merged(scene, {FILE: base}, {FILE: head + top + text}, {FILE: base + bottom})


PLAIN = "def helper():\n    return {}\n\n\n"
HELPER = "@jit\ndef helper():\n    return {}\n\n\n"
CLASS = "class Cache:\n    kept = 1\n\n" + "".join(
    f"    def middle_{number}(self):\n        return {number}\n\n" for number in range(6)
)
IN_CLASS = "class Cache:\n    kept = 1\n\n{}" + CLASS.partition("kept = 1\n\n")[2] + "{}"
ENUM = """\
from enum import IntEnum


class Mode(IntEnum):
    {}
    A = 1

    B = 2

    C = 3
    {}
"""
TABLE = "TABLE = {{\n    {}\n    'a': 1,\n\n    'b': 2,\n\n    'c': 3,\n    {}\n}}\n"


def ends(top: str, bottom: str) -> str:
    """`MIDDLE` with text before and behind it, as the other texts have places for it."""
    return top + MIDDLE + bottom


SIZE = "    @property\n    def size(self):\n        return {}\n"
# name: a file with two places; what upstream puts into the first and the carry into the second; what is
# named; what the carry puts there that doubles nothing; what the base has in the first place.
DOUBLED: dict[str, tuple[Callable[[str, str], str], str, str, str, str, str]] = {
    "a function": (
        ends, PLAIN.format(1), PLAIN.format(2), "helper", PLAIN.format(2).replace("helper", "another"), "",
    ),
    "a decorated function": (
        ends, HELPER.format(1), HELPER.format(2), "helper", HELPER.format(2).replace("helper", "another"), "",
    ),
    "a property": (
        IN_CLASS.format, SIZE.format(1) + "\n", SIZE.format(2), "Cache.size",
        SIZE.format(2).replace("size", "length"), "",
    ),
    "a constant": (ends, "LIMIT = 1\n\n\n", "LIMIT = 2\n", "LIMIT", "LIMITS = 2\n", ""),
    "an attribute of a class": (
        IN_CLASS.format, "    limit = 1\n", "    limit: int = 2\n", "Cache.limit", "    limits: int = 2\n",
        "",
    ),
    "a key": (TABLE.format, "'x': 4,", "'x': 5,", "['x']", "'y': 5,", ""),
    "a member": (ENUM.format, "X = 4", "X = 5", "Mode.X", "Y = 5", ""),
    "a value of two members": (ENUM.format, "X = 4", "Y = 4", "Mode(4)", "Y = 5", ""),
    "a value that upstream gave to another member": (
        ENUM.format, "OLD = 4", "Y = 4", "Mode(4)", "Y = 5", "OLD = 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DOUBLED)
def test_what_both_sides_added_is_refused_and_its_twin_is_not(scene: Scene, case: str) -> None:
    text, theirs, ours, name, twin, before = DOUBLED[case]
    base, target = {FILE: text(before, "")}, {FILE: text(theirs, "")}
    outcome = merged(scene, base, target, {FILE: text(before, ours)})
    assert outcome.kind is OutcomeKind.REFUSED
    assert f"{FILE} defines {name} 2 times" in outcome.detail
    healthy = merged(scene, base, target, {FILE: text(before, twin)})
    assert (healthy.kind, healthy.hazards) == (OutcomeKind.APPLIED, ())


REPEATED = {
    "registrations": "@register\ndef _(value):\n    return {}\n\n\n",
    "branches": "if FLAG:\n    LIMIT = {0}\nelse:\n    LIMIT = {0}0\n\n\n",
    "functions in branches": "if FLAG:\n    def f_{0}(): ...\nelse:\n    def f_{0}(): ...\n\n\n",
    "overloads": "@overload\ndef f(a): ...\n@overload\ndef f(b): ...\ndef g_{}(): ...\n\n\n",
}


@pytest.mark.parametrize("case", REPEATED)
def test_what_a_side_repeats_itself_is_repeated_rightly(scene: Scene, case: str) -> None:
    text = REPEATED[case]
    outcome = both_ends(scene, text.format(1), text.format(2), head="FLAG = register = overload = None\n")
    assert (outcome.kind, outcome.hazards) == (OutcomeKind.APPLIED, ())


def test_one_value_twice_is_a_hazard(scene: Scene) -> None:
    outcome = both_ends(scene, "LIMIT = 1\n\n\n", "LIMIT = 1\n")
    assert outcome.kind is OutcomeKind.APPLIED
    assert [(hazard.kind, hazard.path, hazard.name) for hazard in outcome.hazards] == [
        ("doubled", FILE, "LIMIT")
    ]


class TestNames:
    """Names that one side uses and the other took away."""

    USES = MIDDLE + "def last():\n    return LIMIT\n"

    @pytest.mark.parametrize(
        ("head", "without"),
        [
            ("LIMIT = 1\n\n\n", ""),
            ("from vllm.other import LIMIT\n\n\n", ""),
            ("LIMIT = 1\n\n\n", "LIMITS = 1\n\n\n"),
            ("def LIMIT():\n    return 1\n\n\n", ""),
        ],
    )
    def test_of_the_same_file(self, scene: Scene, head: str, without: str) -> None:
        files = {FILE: head + MIDDLE, OTHER: "LIMIT = 1\n"}
        change = {FILE: head + self.USES}
        outcome = merged(scene, files, {FILE: without + MIDDLE}, change)
        assert outcome.kind is OutcomeKind.REFUSED
        assert f"{FILE} uses LIMIT" in outcome.detail
        assert merged(scene, files, {FILE: head + "\n" + MIDDLE}, change).kind is OutcomeKind.APPLIED
        # what may come from a star, and what was missing before, is not of the merge
        star = "from vllm.other import *\n\n\n"
        assert merged(scene, files, {FILE: star + MIDDLE}, change).kind is OutcomeKind.APPLIED
        lacking = {FILE: MIDDLE + "def last():\n    return LIMIT\n", OTHER: ""}
        fine = merged(scene, lacking, {FILE: "X = 1\n" + lacking[FILE]}, {FILE: lacking[FILE] + "Y = 1\n"})
        assert fine.kind is OutcomeKind.APPLIED

    @pytest.mark.parametrize(
        "line",
        [
            "from vllm.other import LIMIT", "from .other import LIMIT", "from vllm import other",
            "import vllm.other", "def f():\n    from vllm.other import LIMIT as L\n    return L",
        ],
    )  # fmt: skip
    def test_the_carry_imports_what_upstream_moved(self, scene: Scene, line: str) -> None:
        files = {FILE: MIDDLE, OTHER: "LIMIT = 1\nELSE = 1\n", "vllm/__init__.py": ""}
        change = {FILE: f"{line}\n\n\n{MIDDLE}"}
        moved = {OTHER: DELETED, "vllm/moved.py": "LIMIT = 1\nELSE = 1\n"}
        outcome = merged(scene, files, moved, change)
        assert outcome.kind is OutcomeKind.REFUSED
        assert f"{FILE} imports " in outcome.detail
        assert "vllm.other" in outcome.detail or "other from vllm" in outcome.detail
        still = {OTHER: "LIMIT = 2\n"}
        assert merged(scene, files, still, change).kind is OutcomeKind.APPLIED
        package = {OTHER: DELETED, "vllm/other/__init__.py": "from vllm.moved import LIMIT\n"}
        assert merged(scene, files, package, change).kind is OutcomeKind.APPLIED

    def test_upstream_imports_what_the_carry_removed_where_it_does_not_reach(self, scene: Scene) -> None:
        files = {FILE: MIDDLE, OTHER: "LIMIT = 1\n\n\nELSE = 1\n"}
        uses = {FILE: "from vllm.other import LIMIT\n\n\n" + MIDDLE}
        outcome = merged(scene, files, uses, {OTHER: "ELSE = 1\n"})
        assert outcome.kind is OutcomeKind.REFUSED
        assert f"{FILE} imports LIMIT from vllm.other" in outcome.detail
        twin = merged(scene, files, uses, {OTHER: "LIMIT = 1\n"})
        assert twin.kind is OutcomeKind.APPLIED

    def test_what_no_side_has_is_compiled_or_foreign(self, scene: Scene) -> None:
        files = {FILE: MIDDLE, OTHER: "X = 1\n", "vllm/__init__.py": ""}
        change = {FILE: f"import torch.cuda\nfrom vllm._C import ops\nfrom vllm.other import gone\n{MIDDLE}"}
        assert merged(scene, files, {OTHER: "X = 2\n"}, change).kind is OutcomeKind.APPLIED


class TestCalls:
    """Calls that no longer fit: for a person to look at."""

    OLD = "def size(block, layers):\n    return block\n"
    NEW = "def size(block, *, heads):\n    return block\n"

    def found(self, outcome: Outcome) -> list[tuple[str, str, str]]:
        assert outcome.kind is OutcomeKind.APPLIED
        return [(hazard.kind, hazard.path, hazard.name) for hazard in outcome.hazards]

    @pytest.mark.parametrize(
        ("call", "lost"),
        [
            ("size(1, 2)", True),
            ("other.size(1, layers=2)", True),
            ("size(1, heads=2)", False),
            ("size(*everything)", False),
            ("size(1, 2, 3)", False),  # it never fitted, so it is another function of that name
            ("unlike(1, 2)", False),
        ],
    )
    def test_the_carry_calls_what_upstream_changed(self, scene: Scene, call: str, lost: bool) -> None:  # noqa: FBT001
        files = {FILE: "everything = other = size = unlike = None\n" + MIDDLE, OTHER: self.OLD}
        change = {FILE: files[FILE] + f"def last():\n    return {call}\n"}
        outcome = merged(scene, files, {OTHER: self.NEW}, change)
        assert self.found(outcome) == ([("signature", FILE, "size")] if lost else [])
        assert self.found(merged(scene, files, {OTHER: self.OLD + "# more\n"}, change)) == []

    def test_upstream_calls_what_the_carry_changed(self, scene: Scene) -> None:
        files = {FILE: "size = None\n" + MIDDLE, OTHER: self.OLD}
        uses = {FILE: files[FILE] + "def last():\n    return size(1, 2)\n"}
        assert self.found(merged(scene, files, uses, {OTHER: self.NEW})) == [("signature", FILE, "size")]
        twin = self.OLD.replace("layers", "layers, heads=1")
        assert self.found(merged(scene, files, uses, {OTHER: twin})) == []

    def test_calls_that_stood_there_before_are_the_affair_of_who_changed_the_function(self, scene):
        files = {FILE: "size = None\n" + MIDDLE + "def last():\n    return size(1, 2)\n", OTHER: self.OLD}
        outcome = merged(scene, files, {OTHER: self.NEW}, {FILE: files[FILE] + "X = 1\n"})
        assert self.found(outcome) == []

    def test_a_method_that_upstream_removed(self, scene: Scene) -> None:
        class_ = (
            "class Cache:\n    def free(self, block):\n        pass\n\n    def keep(self):\n        pass\n"
        )
        without = "class Cache:\n    def keep(self):\n        pass\n"
        files = {FILE: MIDDLE, OTHER: class_}
        change = {FILE: MIDDLE + "def last(cache):\n    cache.free(1)\n"}
        assert self.found(merged(scene, files, {OTHER: without}, change)) == [("removed", FILE, "Cache.free")]
        moved = {OTHER: without, "vllm/moved.py": class_.replace("Cache", "Base")}
        assert self.found(merged(scene, files, moved, change)) == []
        tensors = {**files, "vllm/far.py": "def f(tensor):\n    return tensor.free(2)\n"}
        assert self.found(merged(scene, tensors, {OTHER: without}, change)) == []
        elsewhere = {**files, "vllm/far.py": class_.replace("Cache", "Far")}
        assert self.found(merged(scene, elsewhere, {OTHER: without}, change)) == []

    @pytest.mark.parametrize(
        ("decorator", "launch", "lost"),
        [
            ("@triton.jit", "kernel[(1,)](1, 2, num_warps=4)", True),
            ("@triton.jit", "kernel[(1,)](1, 2, 3, num_warps=4)", False),
            ("@triton.heuristics(x)\n@triton.jit", "kernel[(1,)](1, 2)", False),  # it gives further ones
        ],
    )
    def test_a_kernel(self, scene: Scene, decorator: str, launch: str, lost: bool) -> None:  # noqa: FBT001
        kernel = f"x = triton = None\n\n\n{decorator}\ndef kernel(a, b):\n    pass\n"
        files = {FILE: "kernel = None\n" + MIDDLE, OTHER: kernel}
        change = {FILE: files[FILE] + f"def last():\n    {launch}\n"}
        outcome = merged(scene, files, {OTHER: kernel.replace("(a, b)", "(a, b, c)")}, change)
        assert self.found(outcome) == ([("signature", FILE, "kernel")] if lost else [])


# Enough definitions of the same names that names alone tell nothing.
COMMON = {
    f"vllm/common_{number}.py": "def size(*a, **k): ...\n\n\nclass C:\n    def free(self, *a): ...\n"
    for number in range(3)
}
THEIRS = (
    "import enum\n\n\ndef size(block, layers):\n    return block\n\n\n"
    "class Base:\n    def keep(self, a):\n        pass\n\n\n"
    "class Kind(enum.IntEnum):\n    PAGE = 1\n    ROW = 2\n\n\n"
    "class Cache(Base):\n    wide = 1\n\n    def __init__(self):\n        pass\n\n"
    "    def free(self, block):\n        pass\n\n\n"
    "LIMIT = 1\n"
)
CHANGES = {
    "another signature": ("def size(block, layers)", "def size(block, *, heads)"),
    "another method": ("def free(self, block)", "def free(self, block, heads)"),
    "another inherited method": ("def keep(self, a)", "def keep(self)"),
    "no function": ("def size(block, layers)", "def sizes(block, layers)"),
    "no constant": ("LIMIT = 1\n", ""),
    "no member": ("    ROW = 2\n", ""),
    "no attribute": ("    wide = 1\n\n", ""),
    "no class": ("class Base:", "class Basis:"),
    "no method": ("    def free(self, block):\n        pass\n", ""),
    "a moved method": ("class Base:\n", "class Base:\n    def free(self, block):\n        pass\n\n"),
    "another constructor": ("def __init__(self)", "def __init__(self, heads)"),
}


class TestCallees:
    """Calls of a common name, whose callee the text names: only its own definition counts."""

    def found(
        self, scene: Scene, caller: str, change: str, *, head: str = "import vllm.other as m\n"
    ) -> list[tuple[str, str]]:
        old, new = CHANGES[change]
        files = {**COMMON, "vllm/__init__.py": "", FILE: head + MIDDLE, OTHER: THEIRS}
        target = THEIRS.replace(old, new)
        if change == "a moved method":
            target = target.replace(CHANGES["no method"][0] + "\n\nLIMIT", "\n\nLIMIT")
        outcome = merged(scene, files, {OTHER: target}, {FILE: head + MIDDLE + caller})
        assert outcome.kind is OutcomeKind.APPLIED, outcome.detail
        return [(hazard.kind, hazard.name) for hazard in outcome.hazards]

    @pytest.mark.parametrize(
        ("caller", "change", "hazard"),
        [
            ("x = m.size(1, 2)\n", "another signature", ("signature", "size")),
            ("x = m.size(1, heads=2)\n", "another signature", None),  # it did not fit before either
            ("x = m.Cache().free(1)\n", "another method", ("signature", "Cache.free")),
            ("x = m.Cache().free(1)\n", "no method", ("removed", "Cache.free")),
            ("x = m.Cache().free(1)\n", "a moved method", None),
            ("x = m.Cache().keep(1)\n", "another inherited method", ("signature", "Cache.keep")),
            ("x = m.Cache()\n", "another constructor", ("signature", "Cache")),
            ("def f():\n    return m.size(1, 2)\n", "no function", ("removed", "size")),
            ("def f(m):\n    return m.size(1, 2)\n", "another signature", None),  # a parameter
            ("def f():\n    m = g()\n    return m.size(1, 2)\n\n\ng = None\n", "another signature", None),
            ("f = lambda m: m.size(1, 2)\n", "another signature", None),
            ("x = m.LIMIT + 1\n", "no constant", ("removed", "LIMIT")),
            ("class Own(m.Base):\n    pass\n", "no class", ("removed", "Base")),
            ("@m.size\ndef f():\n    pass\n", "no function", ("removed", "size")),
            ("x = m.size(*y)\n", "no function", ("removed", "size")),
            ("x = m.LIMIT + 1\n", "no function", None),
            ("x = m.Kind.ROW\n", "no member", ("removed", "Kind.ROW")),
            ("x = m.Kind.PAGE\n", "no member", None),
            ("x = m.Kind.__members__\n", "no member", None),
            ("from .other import Cache\n\nx = Cache.wide\n", "no attribute", ("removed", "Cache.wide")),
            ("x = m.Cache.keep\n", "no attribute", None),  # a base has it
            ("def f(m):\n    return m.LIMIT\n", "no constant", None),
            ("m.LIMIT = 2\n", "no constant", None),  # sets it
            (
                "def f():\n    from vllm.other import size as s\n    return s(1, 2)\n",
                "another signature",
                ("signature", "size"),
            ),
            (
                "from .other import Cache\n\n\nclass Own(Cache):\n    def f(self):\n        self.free(1)\n",
                "no method",
                ("removed", "Own().free"),
            ),
        ],
    )
    def test_of_a_module(self, scene, caller, change, hazard):
        expected = hazard and (hazard[0], hazard[1].replace("()", ""))
        assert self.found(scene, caller, change) == ([expected] if expected else [])

    def test_of_the_class_itself(self, scene: Scene) -> None:
        body = "class Cache:\n{}    def free(self, block):\n        pass\n\n"
        middle = "".join(f"    def m{n}(self):\n        return {n}\n\n" for n in range(6))
        call = "    def last(self):\n        self.free(1)\n"
        base = body.format("") + middle
        for text, expected in (
            (base.replace("self, block", "self, block, heads"), [("signature", "Cache.free")]),
            (base.replace("def free", "def release"), [("removed", "Cache.free")]),
            (base.replace("self, block", "self, block, heads=1"), []),
            (
                "from far import Far\n" + base.replace("Cache:", "Cache(Far):").replace("def free", "def x"),
                [],
            ),
        ):
            outcome = merged(scene, {**COMMON, FILE: base}, {FILE: text}, {FILE: base + call})
            assert [(one.kind, one.name) for one in outcome.hazards] == expected


DEEP = {
    "a sum": "X = " + "1 + " * 20_000 + "1\n",
    "attributes": "X = a" + ".b" * 20_000 + "\n",
    "signs": "X = " + "-" * 5_000 + "1\n",
    "branches": "a = 1\nif a:\n    pass\n" + "".join(f"elif a == {n}:\n    pass\n" for n in range(3_000)),
}


@pytest.mark.parametrize("case", DEEP)
def test_code_that_is_nested_too_deep_is_refused_and_hides_nothing(scene: Scene, case: str) -> None:
    scene.base = {FILE: MIDDLE, OTHER: "Y = 1\n"}
    scene.add("deep", {FILE: MIDDLE + DEEP[case]})
    scene.add("other", {OTHER: "Y = 2\n"})
    deep, other = scene.merge().outcomes
    assert deep.kind is OutcomeKind.REFUSED
    assert FILE in deep.detail
    assert other.kind is OutcomeKind.APPLIED


def test_code_that_is_nested_as_deep_as_python_takes_is_merged(scene: Scene) -> None:
    deep = "X = " + "1 + " * 700 + "1\n"
    scene.base, scene.target = {FILE: deep + MIDDLE}, {FILE: deep + "Z = 1\n" + MIDDLE}
    scene.add("fix", {FILE: deep + MIDDLE + "Y = 1\n"})
    assert scene.merge().outcomes[0].kind is OutcomeKind.APPLIED


# Findings on clean merges, remembered in the store under the trees that determine them ----
