"""A failure has the same signature in each run, and a bisection a headline of harmless text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_kit import Judge, problem, run, untestable

from sparkwright.engine.outcomes import normalise
from sparkwright.search.model import Change, headline


@pytest.mark.parametrize(("one", "other"), [
    ("at 0x7f3a12ffee00: bad", "at 0x55deadbeef10: bad"),
    ("took 1.25s, 3 of 4 differ", "took 13.5s, 1 of 4 differ"),
    ("open /tmp/tmpab12cd/log.txt: gone", "open /tmp/pytest-of-me/pytest-3/x/log.txt: gone"),
    ("open /var/folders/q1/x/T/a: gone", "open /dev/shm/sparkwright-9/a: gone"),
    ("(EngineCore pid=1234) died", "(EngineCore pid=99) died"),
    ("2026-11-22 16:10:02,123 ERROR x", "2027-01-02T03:04:05Z ERROR x"),
    ("16:10:02.5 ERROR x", "03:04:05 ERROR x"),
    ("123e4567-e89b-12d3-a456-426614174000 failed", "00000000-e89b-12d3-a456-42661417ffff failed"),
    ("loss 1.5e-3", "loss -2"),
    ("free 12.5GiB of 119GiB", "free 1GiB of 96GiB"),
    ("usage 95%", "usage 7%"),
    ("cannot import name 'gone_140707502265728'", "cannot import name 'gone_140707502265999'"),
    ("EngineCore_DP0_4711 died", "EngineCore_DP0_12815 died"),
    ("in /home/one/vllm/worker.py", "in /srv/env/vllm/worker.py"),
    ("\x1b[31mred\x1b[0m  alert", "red\nalert"),
    ("request cmpl-0123456789abcdef0123456789abcdef", "request cmpl-fedcba9876543210fedcba9876543210"),
])  # fmt: skip
def test_what_differs_from_run_to_run_does_not_count(one, other) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(("one", "other"), [
    ("no kernel for sm_121a", "no kernel for sm_90a"),
    ("kv_cache_dtype fp8 unsupported", "kv_cache_dtype fp4 unsupported"),
    ("KeyError: 'lm_head'", "KeyError: 'embed_tokens'"),
    ("ImportError in vllm/v1/worker.py", "ImportError in vllm/v0/worker.py"),
    ("AssertionError", "TypeError"),
    ("no kernel cutlass_sm121_131072x128", "no kernel cutlass_sm121_262144x128"),
    ("undefined symbol: _Z1234567foo", "undefined symbol: _Z7654321foo"),
    ("in /srv/vllm/worker.py", "in /srv/vllm/engine.py"),
])  # fmt: skip
def test_what_tells_failures_apart_stays(one, other) -> None:
    assert normalise(one) != normalise(other)


@given(st.text())
def test_a_signature_is_one_line_and_stays_as_it_is(text) -> None:
    found = normalise(text)
    assert "\n" not in found
    assert normalise(found) == found


def test_control_characters_of_a_title_are_not_shown() -> None:
    changes = tuple(Change(id=f"c{n}", axis="carries", title=f"{n} \x1b[31m \u202e") for n in range(1, 6))
    asked = problem(changes=changes)
    text = headline(asked, run(asked, Judge(lambda applied: "c4" in applied)))
    assert text.startswith("4 ")
    assert not {"\x1b", "\u202e"} & set(text)


@pytest.mark.parametrize(("rule", "kind", "named"), [
    (lambda a: "c2" in a, "culprit", {"change 2"}),
    (lambda a: {"c2", "c5"} <= a, "interaction", {"change 2", "change 5"}),
    (lambda a: untestable() if len(a) == 2 else len(a) >= 2, "range", {"change 2", "change 3"}),
])  # fmt: skip
def test_each_kind_of_answer_is_named(rule, kind, named) -> None:
    asked = problem(6, "upstream" if kind == "range" else "carries")
    result = run(asked, Judge(rule))
    assert result.kind == kind
    text = headline(asked, result)
    assert all(name in text for name in named)
    assert "change 4" not in text
