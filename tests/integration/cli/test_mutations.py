"""Mutations of carries: what a probe notices, what survives, and mutations that cannot be made."""

import sys
from pathlib import Path
from typing import Any

import pytest
from kit import load_file
from tiny_release import CLAMPED
from world import CLAMP_PROBE, World

from sparkwright.base.errors import ConfigError
from sparkwright.pipeline.job import open_job

SCRIPT = Path(__file__).parents[3] / "scripts" / "mutations.py"
ENTRY = '[[mutation]]\nname = "{name}"\nfile = "{file}"\nold = "{old}"\nnew = "{new}"\n{more}\n'


@pytest.fixture(scope="module")
def script() -> Any:
    return load_file(SCRIPT)


def entry(name: str, old: str, new: str, *, file: str = "vllm/clamp.py", more: str = "") -> str:
    return ENTRY.format(name=name, old=old, new=new, file=file, more=more)


def mutate(script: Any, world: World, monkeypatch: pytest.MonkeyPatch, *entries: str) -> list[Any]:
    (world.root / "carries" / "clamp" / "mutations.toml").write_text("\n".join(entries))
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    with open_job(world.root) as job:
        return list(script.mutate(job, "1.2", ["clamp"]))


def test_each_mutation_gets_its_word(script: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        entry("drops the bound", "min(value, LIMIT)", "value"),
        entry("is no Python", "return min", "return return min"),
        entry("bounds by one less", "# Always.", "# Sometimes."),
        entry("adds nothing", "min(value", "0 + min(value", more='equal = "a sum with zero"'),
        entry("is not what it says", "min(value", "max(value", more='equal = "so it is said"'),
        entry("is of another series", "text that is nowhere", "", more='series = "9.9"'),
    ]
    results = mutate(script, world, monkeypatch, *entries)
    assert {result.mutation.name: result.word for result in results} == {
        "drops the bound": "noticed",
        "is no Python": "noticed",
        "bounds by one less": "survived",
        "adds nothing": "equal",
        "is not what it says": "noticed, not equal",
    }
    assert script.counts(results) == [
        "1.2 clamp: 5 mutations: 2 noticed, 1 survived, 1 equal, 1 noticed, not equal"
    ]
    assert results[0].line == "1.2 clamp: noticed: drops the bound (clamp(99) is not 10)"
    assert "SyntaxError" in results[1].line
    assert mutate(script, world, monkeypatch, *entries) == results


@pytest.mark.parametrize(
    ("old", "file", "because"),
    [
        ("nowhere", "vllm/clamp.py", "occurs 0 times"),
        ("value", "vllm/clamp.py", "occurs 2 times"),
        ("value", "vllm/gone.py", "not in the merged tree"),
        ("two", "vllm/words.py", "neither the carry changes nor its probe imports"),
    ],
)
def test_a_mutation_that_cannot_be_made_is_an_error(script, world, monkeypatch, old, file, because):
    with pytest.raises(ConfigError, match=because):
        mutate(script, world, monkeypatch, entry("is wrong", old, "other", file=file))


def test_a_probe_that_fails_on_the_merged_tree_judges_nothing(script, world, monkeypatch):
    world.carry("clamp", {"vllm/clamp.py": CLAMPED.replace("LIMIT)", "11)")}, probe=CLAMP_PROBE, listed=False)
    results = mutate(script, world, monkeypatch, entry("drops the bound", "min(value, 11)", "value"))
    assert [result.word for result in results] == ["unjudged"]


@pytest.mark.parametrize(
    ("new", "limit", "said"),
    [
        ("any(iter(int, 1)) or value", {"seconds": 3}, "it ran for more than 3 s"),
        (
            # Write memory again and again: Linux may reclaim the idle pages of a process that sleeps (DAMON).
            "any(not b'x' * (900 << 20) for _ in iter(int, 1)) or value",
            {"memory-mib": 400},
            "MiB",
        ),
    ],
)
def test_a_probe_that_is_stopped_at_a_limit_has_noticed_nothing(script, world, monkeypatch, new, limit, said):
    world.carry("clamp", {"vllm/clamp.py": CLAMPED}, probe=CLAMP_PROBE, probing=limit, listed=False)
    [result] = mutate(script, world, monkeypatch, entry("does not end", "min(value, LIMIT)", new))
    assert (result.word, result.noticed) == ("limit", False)
    assert said in result.line
    assert script.counts([result]) == ["1.2 clamp: 1 mutations: 1 limit"]


def test_carries_without_mutations_of_a_series_are_named(script, world, monkeypatch, capsys):
    """But for those that change how kernels are compiled, they are errors."""
    kernel = {"csrc/kernel.cu": "// another kernel\n"}
    world.carry("native", kernel, probe=CLAMP_PROBE, scope="build")
    none = mutate(script, world, monkeypatch, entry("is of another series", "a", "b", more='series = "9.9"'))
    assert [result.word for result in none] == ["no mutations"]
    assert script.counts(none) == [
        "1.2 clamp: no mutations (carries/clamp/mutations.toml has none that applies to 1.2)"
    ]
    monkeypatch.setattr(script, "ROOT", world.root)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["mutations.py", "--series", "1.2", "--carry", *words])
        return script.main(), capsys.readouterr().out

    status, out = run("native")
    assert (status, out.strip()) == (0, f"1.2 native: skipped ({script._COMPILED})")
    assert run("native", "clamp")[0] == 1
