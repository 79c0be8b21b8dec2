"""Probes on two trees: every verdict, everything that a probe may do wrong, and what a proof hangs on."""

import importlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from kit import DELETED, Content, make_carry, make_tree, seed_environment

from sparkwright.base.errors import ConfigError, ToolError
from sparkwright.git.repository import Repository
from sparkwright.probe import environment as environment_module
from sparkwright.probe.judge import Prover, judge
from sparkwright.probe.proof import (
    ProbeRun,
    ProbeVerdict,
    Proof,
    Touched,
    named_modules,
    proof_key,
    read_proofs,
    write_proof,
)
from sparkwright.store.paths import Store

CACHE = "vllm/cache.py"
PACKAGE: dict[str, Content] = {
    "vllm/__init__.py": "",
    CACHE: "def size(n):\n    return n\n",
    "vllm/helper.py": "VALUE = 1\n",
    "setup.py": "raise SystemExit\n",
}
FIXED = "def size(n):\n    return max(n, 1)\n"
GOOD = """
from probekit import expect
from vllm.cache import size

def probe():
    expect(size(0) == 1, f"size(0) is {size(0)}")
"""


HELPED = {"helpers": ["beside.py"]}


@pytest.fixture(autouse=True)
def seeded(store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment for probes without torch: the tests' own interpreter."""
    monkeypatch.setattr(environment_module, "requirements", lambda: "nothing\n")
    return seed_environment(store, "nothing\n")


@dataclass
class Bench:
    """Proves the change of CACHE to *after* with any probe."""

    store: Store
    repository: Repository
    root: Path
    after: dict[str, Content]

    def carry(self, probe: str, **changes: object):
        return make_carry(self.root, self.repository, "fix", PACKAGE, self.after, probe=probe, **changes)

    def prover(
        self, *, pristine: dict[str, Content] = PACKAGE, merged: dict[str, Content] | None = None
    ) -> Prover:
        whole = {**PACKAGE, **self.after} if merged is None else merged
        files = {path: content for path, content in whole.items() if content is not DELETED}
        trees = [make_tree(self.repository, tree) for tree in (pristine, files)]
        return Prover(self.store, self.repository, *trees, version="1.0.0")

    def prove(self, probe: str, **changes: object) -> Proof:
        return self.prover().prove(self.carry(probe, **changes), list(self.after))


@pytest.fixture
def bench(store: Store, repository: Repository, tmp_path: Path) -> Bench:
    return Bench(store, repository, tmp_path / "carries", {CACHE: FIXED})


# Verdicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pristine", "merged", "verdict", "absorbed"),
    [
        ("fails", "passes", ProbeVerdict.PROVED, ProbeVerdict.NOT_ABSORBED),
        ("passes", "passes", ProbeVerdict.NOT_NEEDED, ProbeVerdict.NOT_NEEDED),
        ("fails", "fails", ProbeVerdict.REFUTED, ProbeVerdict.NOT_ABSORBED),
        ("passes", "fails", ProbeVerdict.REFUTED, ProbeVerdict.REFUTED),
        ("error", "passes", ProbeVerdict.BROKEN, ProbeVerdict.BROKEN),
        ("fails", "error", ProbeVerdict.BROKEN, ProbeVerdict.BROKEN),
        ("error", "fails", ProbeVerdict.BROKEN, ProbeVerdict.BROKEN),
    ],
)
def test_what_a_pair_of_runs_means(pristine, merged, verdict, absorbed) -> None:
    runs = [ProbeRun(verdict=run, message="") for run in (pristine, merged)]
    assert (judge(*runs), judge(*runs, absorbed=True)) == (verdict, absorbed)


def test_an_absorbed_carry_is_held_against_its_probe(bench: Bench) -> None:
    carry, fixed = bench.carry(GOOD), {**PACKAGE, CACHE: FIXED}
    healthy = bench.prover(pristine=fixed, merged=fixed)
    absent = healthy.prove(carry, [CACHE], absorbed=True)
    assert absent.verdict is ProbeVerdict.NOT_NEEDED
    assert healthy.find(carry, [CACHE], absorbed=True) == absent
    assert healthy.find(carry, [CACHE]) is None  # it says nothing of a carry that is in the tree
    there = bench.prover(merged=PACKAGE).prove(carry, [CACHE], absorbed=True)
    assert (there.verdict, there.finding) == (ProbeVerdict.NOT_ABSORBED, "size(0) is 0")


def body(*lines: str) -> str:
    return "import vllm.cache\n\ndef probe():\n" + "".join(f"    {line}\n" for line in lines)


BROKEN = {
    "another exception": (body("raise ValueError('odd')"), "ValueError: odd"),
    "an assertion": (body("assert False, 'no expectation'"), "AssertionError"),
    "a module that is gone": ("import vllm.renamed\n\ndef probe(): ...\n", "No module named 'vllm.renamed'"),
    "no probe function": ("import vllm.cache\n", "probe"),
    "a syntax error": ("def probe(:\n", "SyntaxError"),
    "bytes that are no source": ("\0", "null bytes"),
    "leaving the interpreter": (body("raise SystemExit(0)"), "SystemExit"),
    "an interrupt": (body("raise KeyboardInterrupt"), "KeyboardInterrupt"),
    "dying at once": (body("import os", "os._exit(0)"), "status 0 and no report"),
    "a signal": (body("import os", "os.kill(os.getpid(), 11)"), "status -11 and no report"),
    "a report of its own": (
        body(
            "import os, sys",
            "open(sys.argv[sys.argv.index('--report') + 1], 'w').write('{\"ver')",
            "os._exit(0)",
        ),
        "report is damaged",
    ),
    "never importing what changed": ("def probe(): ...\n", f"never imported {CACHE}"),
    "writing to the tree": (
        body(
            "import os, pathlib",
            "place = pathlib.Path(vllm.cache.__file__).parent",
            "os.chmod(place, 0o755)",
            "(place / 'new.py').write_text('')",
        ),
        "wrote to the tree",
    ),
    "changing a file of the tree": (
        body(
            "import os", "os.chmod(vllm.cache.__file__, 0o644)", "open(vllm.cache.__file__, 'a').write('# x')"
        ),
        "wrote to the tree",
    ),
    "vllm from elsewhere": (
        "import sys, types\nfake = types.ModuleType('vllm.other')\n"
        "fake.__file__ = '/elsewhere/vllm/other.py'\n"
        "sys.modules['vllm.other'] = fake\n" + body("pass"),
        "not imported from the tree: vllm.other",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken(bench: Bench, case: str) -> None:
    probe, says = BROKEN[case]
    proof = bench.prove(probe)
    assert proof.verdict is ProbeVerdict.BROKEN
    assert proof.merged.verdict == "error"
    assert says in proof.merged.message
    # A broken probe is no evidence: nothing is kept of it.
    assert bench.prover().find(bench.carry(probe), [CACHE]) is None


NEW = """
from probekit import Defect

def probe():
    try:
        import vllm.new
    except ImportError:
        raise Defect("there is none") from None
"""


@pytest.mark.parametrize(
    ("after", "probe"),
    [
        ({"vllm/new.py": "def f():\n    return 1\n"}, NEW),
        ({CACHE: FIXED, "vllm/helper.py": DELETED}, GOOD),
        ({CACHE: FIXED, "csrc/a.cu": "int a;\n", "tests/test_a.py": "", "vllm/data.json": "{}"}, GOOD),
    ],
    ids=["a module is new", "a module is deleted", "files that are no modules"],
)
def test_what_cannot_be_imported_on_both_trees_need_not_be(bench, after, probe):
    bench.after = after
    assert bench.prove(probe).verdict is ProbeVerdict.PROVED


def test_a_rewritten_probe_of_the_same_size_and_second_is_what_runs(bench: Bench) -> None:
    """Bytecode is known by its source's size and second alone: that of the old probe must not run."""
    carry, second = bench.carry(GOOD), 1_700_000_000
    for probe, verdict in (
        (GOOD, ProbeVerdict.PROVED),
        (GOOD.replace("== 1", "== 7"), ProbeVerdict.REFUTED),
        (GOOD, ProbeVerdict.PROVED),
    ):
        carry.probe_path.write_text(probe)
        os.utime(carry.probe_path, (second, second))
        assert bench.prover().prove(carry, [CACHE]).verdict is verdict


def test_messages_do_not_name_this_machine(bench: Bench, store: Store) -> None:
    where = GOOD.replace('f"size(0) is {size(0)}"', "__import__('vllm').__file__")
    assert bench.prove(where).pristine.message == "<tree>/vllm/__init__.py"


def test_a_probe_sees_no_variables_and_no_settings_of_ours(bench, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("VLLM_SECRET", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    probe = body(
        "import os, sys",
        "assert 'VLLM_SECRET' not in os.environ and os.environ['CUDA_VISIBLE_DEVICES'] == ''",
        "assert '/elsewhere' not in sys.path and '' not in sys.path",
        "import importlib.metadata",
        "assert importlib.metadata.version('vllm') == '1.0.0'",
    )
    assert bench.prove(probe).verdict is ProbeVerdict.NOT_NEEDED


# What a proof hangs on ---------------------------------------------------------------------


def test_a_carry_without_a_probe_cannot_be_proved(bench: Bench) -> None:
    carry = make_carry(bench.root, bench.repository, "bare", PACKAGE, bench.after)
    assert bench.prover().find(carry, [CACHE]) is None
    with pytest.raises(ConfigError, match="cannot be proved") as caught:
        bench.prover().prove(carry, [CACHE])
    assert caught.value.next_step


def test_a_proof_is_found_again_and_only_while_it_holds(bench: Bench) -> None:
    carry = bench.carry(GOOD)
    prover = bench.prover()
    assert prover.find(carry, [CACHE]) is None
    proof = prover.prove(carry, [CACHE])
    assert prover.find(carry, [CACHE]) == proof  # from the store
    other = {**PACKAGE, CACHE: FIXED + "# more\n"}
    assert bench.prover(merged=other).find(carry, [CACHE]) is None
    assert bench.prover(pristine=other).find(carry, [CACHE]) is None


def test_a_recorded_proof_is_taken_without_the_store_and_not_when_it_is_anothers(bench, tmp_path):
    from sparkwright.store.paths import open_store

    carry = bench.carry(GOOD)
    proof = bench.prover().prove(carry, [CACHE])
    write_proof(carry.folder, proof, "1.0.0")
    assert read_proofs(carry.folder) == (proof,)
    elsewhere = replace(bench.prover(), store=open_store(tmp_path / "another"))
    assert elsewhere.find(carry, [CACHE]) == proof
    write_proof(carry.folder, msgspec.structs.replace(proof, carry="other"), "1.0.0")
    assert elsewhere.find(carry, [CACHE]) is None
    write_proof(carry.folder, msgspec.structs.replace(proof, key="0" * 64), "1.0.0")
    assert elsewhere.find(carry, [CACHE]) is None


LATER = [{"release": "0.9.0", "file": "probe_0_9.py"}, {"release": "2.0.0", "file": "probe_2.py"}]


def test_a_later_release_is_judged_by_its_own_probe(bench: Bench) -> None:
    broken = "def probe() -> None:\n    import vllm.moved\n"
    later = {"probe_0_9.py": GOOD, "probe_2.py": broken}
    (bench.root / "fix").mkdir(parents=True)
    for name, text in later.items():
        (bench.root / "fix" / name).write_text(text)
    carry = bench.carry(broken, probing={"later": LATER})
    verdicts = {
        version: replace(bench.prover(), version=version).prove(carry, [CACHE]).verdict
        for version in ("0.8.0", "0.9.0", "1.0.0", "2.0.0")
    }
    assert verdicts == {"0.8.0": "broken", "0.9.0": "proved", "1.0.0": "proved", "2.0.0": "broken"}
    assert replace(bench.prover(), version="1.0.0").find(carry, [CACHE]) is not None
    assert replace(bench.prover(), version="0.8.0").find(carry, [CACHE]) is None


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"\xff", b'{"format": 1}', b'{"format": 1, "extra": 2}']
)
def test_a_damaged_recorded_proof_is_an_error_that_says_what_to_do(bench: Bench, damage: bytes) -> None:
    carry = bench.carry(GOOD)
    assert read_proofs(carry.folder) == ()
    (carry.folder / "proofs").mkdir()
    (carry.folder / "proofs" / "1.0.0.json").write_bytes(damage)
    with pytest.raises(ConfigError, match=r"1\.0\.0\.json") as caught:
        bench.prover().find(carry, [CACHE])
    assert "remove it" in caught.value.next_step


def test_the_key_changes_with_what_the_proof_hangs_on_and_nothing_else(bench: Bench) -> None:
    def key(probe: str = GOOD, paths: tuple[str, ...] = (CACHE,), **trees) -> str:
        return bench.prover(**trees).key(bench.carry(probe), paths)

    plain = key()
    merged = {**PACKAGE, CACHE: FIXED}
    assert key() == plain
    assert key(merged={**merged, "vllm/helper.py": "VALUE = 2\n"}) == plain  # untouched
    assert key(merged={**merged, "setup.py": ""}, pristine={**PACKAGE, "docs.md": ""}) == plain
    assert key(GOOD + "# more\n") != plain
    assert key(merged={**merged, CACHE: FIXED + "\n"}) != plain
    assert key(pristine={**PACKAGE, CACHE: "size = 1\n"}) != plain
    # What the probe itself imports is touched too.
    helping = "import vllm.helper\n" + GOOD
    assert key(helping) != key(helping, merged={**merged, "vllm/helper.py": "VALUE = 2\n"})


def with_helper(bench: Bench, helper: str):
    """A carry whose probe asks a module in its folder."""
    (bench.root / "fix").mkdir(parents=True, exist_ok=True)
    (bench.root / "fix" / "beside.py").write_text(helper)
    return bench.carry("from beside import wanted\n" + GOOD.replace("== 1", "== wanted()"), probing=HELPED)


def test_a_probe_may_import_the_modules_that_its_carry_lists(bench: Bench) -> None:
    helper = "from vllm import helper\n\ndef wanted():\n    return helper.VALUE\n"
    carry = with_helper(bench, helper)
    prover = bench.prover()
    proof = prover.prove(carry, [CACHE])
    assert proof.verdict is ProbeVerdict.PROVED, proof.merged.message
    assert {touched.path for touched in proof.touched} == {"vllm/__init__.py", "vllm/helper.py", CACHE}
    changed = with_helper(bench, helper + "# more\n")
    assert prover.key(changed, [CACHE]) != proof.key
    unlisted = bench.carry(carry.probe_path.read_text())
    proof = prover.prove(unlisted, [CACHE])
    assert proof.verdict is ProbeVerdict.BROKEN
    assert "beside" in proof.merged.message


def test_helpers_leave_no_bytecode_behind(bench: Bench, store: Store) -> None:
    bench.prover().prove(with_helper(bench, "def wanted():\n    return 1\n"), [CACHE])
    kept = {path.name.split(".")[0] for path in store.bytecode.rglob("*.pyc")}
    assert "cache" in kept, "bytecode of trees is to be kept"
    assert "beside" not in kept
    assert not list(store.bytecode.glob(f"**/{store.scratch_root.name}/*"))


def test_the_key_changes_with_the_harness_and_the_settings(bench, monkeypatch):
    touched = [Touched(path="a", pristine="1", merged=None)]
    plain = proof_key(b"p", [b"h"], {"triton": "off"}, touched)
    assert proof_key(b"p", [b"h"], {"triton": "off"}, touched) == plain
    assert proof_key(b"p", [b"h2"], {"triton": "off"}, touched) != plain
    assert proof_key(b"p", [b"h"], {"triton": "interpret"}, touched) != plain
    assert proof_key(b"p", [b"h"], {"triton": "off"}, []) != plain
    assert proof_key(b"\xff", [b"h"], {"triton": "off"}, touched) != plain
    module = importlib.import_module("sparkwright.probe.judge")
    carry, prover = bench.carry(GOOD), bench.prover()
    before = prover.key(carry, [CACHE])
    monkeypatch.setattr(module, "harness_sources", lambda *_: [b"another harness"])
    assert prover.key(carry, [CACHE]) != before


def test_imports_are_read_wherever_they_stand() -> None:
    probe = (
        b"import os, vllm.a\nfrom other import vllm\n"
        b"def f():\n    try:\n        if True:\n            from vllm.b import c\n"
        b"    except* E:\n        import vllm.d\n"
        b"match x:\n    case 1:\n        import vllm.e\nfrom . import f\n"
    )
    modules = ("a", "b", "b/c", "d", "e")
    ends = (".py", "/__init__.py")
    assert named_modules(probe, "vllm") == {f"vllm/{name}{end}" for name in modules for end in ends}
    assert named_modules(b"import vllm", "vllm") == {"vllm.py", "vllm/__init__.py"}
    assert named_modules(b"import vllmx.a", "vllm") == set()
    assert named_modules(b"def (", "vllm") == set()


def test_an_environment_whose_interpreter_is_gone_is_a_tool_error(bench: Bench, seeded: Path) -> None:
    seeded.unlink()
    with pytest.raises(ToolError, match="python"):
        bench.prove(GOOD)
