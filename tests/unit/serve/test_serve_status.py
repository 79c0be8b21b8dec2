"""The state between two looks at the counters, and the pressure on memory."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from sparkwright.base.events import emit
from sparkwright.cli.serve_show import Screen, example, state_line
from sparkwright.engine.observations import HostSample, MetricsSnapshot
from sparkwright.serve.engine import state_between
from sparkwright.serve.run import ServeOptions

S = 1_000_000_000
HOST = HostSample(at=0, memory_available_mib=20480)


def counters(at_s: float, **values: float) -> MetricsSnapshot:
    return MetricsSnapshot(at=int(at_s * S), **values)  # type: ignore[arg-type]


def test_rates_are_since_the_last_look() -> None:
    before = counters(10, generation_tokens=100, prompt_tokens=0, drafts=10, draft_tokens=70, accepted=20)
    after = counters(
        12, generation_tokens=300, prompt_tokens=50, drafts=20, draft_tokens=140, accepted=50, running=3,
        waiting=1, kv_usage=0.25,
    )  # fmt: skip
    assert state_between(before, after, replace(HOST, memory_pressure=1.5)) == {
        "running": 3, "waiting": 1, "tokens_per_s": 100, "prompt_tokens_per_s": 25, "acceptance_length": 4.0,
        "kv_usage": 0.25, "available_gib": 20, "pressure": 1.5,
    }  # fmt: skip


def test_what_is_not_there_is_not_made_up() -> None:
    plain = counters(10, generation_tokens=100, start_s=1)
    idle = state_between(plain, counters(12, generation_tokens=100, start_s=1), HOST)
    assert [idle[name] for name in ("tokens_per_s", "acceptance_length", "kv_usage", "pressure")] == [
        0,
        -1,
        -1,
        -1,
    ]
    nothing_drafted = counters(10, generation_tokens=1, drafts=5, draft_tokens=5, accepted=1)
    assert state_between(nothing_drafted, nothing_drafted, HOST)["acceptance_length"] == -1
    restarted = state_between(plain, counters(12, generation_tokens=5, start_s=9), HOST)
    assert restarted["tokens_per_s"] == -1, "another process: its counters began again"
    line = state_line(idle)
    assert line == "0.0 tok/s  20.0 GiB left"


def test_the_example_never_holds_the_key_itself(tmp_path: Path) -> None:
    plain = example("http://127.0.0.1:8000/v1", "m")
    assert plain.startswith("curl -s http://127.0.0.1:8000/v1/chat/completions ")
    assert "enable_thinking" not in plain
    assert """"chat_template_kwargs": {"enable_thinking": false}""" in example("u", "m", thinks=True)
    keyed = example("http://127.0.0.1:8000/v1", "m", tmp_path / "a key")
    assert "curl -s -H @- " in keyed, "the header comes by standard input, not as an argument"
    assert f"$(cat '{tmp_path}/a key')" in keyed
    shell = example("http://127.0.0.1:8000/v1", "m", shell_key=True)
    assert """printf 'Authorization: Bearer %s\\n' "$VLLM_API_KEY" | curl -s -H @- """ in shell


@pytest.mark.parametrize("thinks", [True, False])
def test_a_model_that_thinks_is_announced_with_a_request_that_gives_words(capsys, *, thinks):
    ready = {"url": "u", "model": "m", "boot_s": 1.0, "warm_up_s": None, "warm_up_requests": 0}
    with Screen(ServeOptions(), quiet=True).showing():
        emit("serve.ready", **ready, thinks=thinks)
    assert ("enable_thinking" in capsys.readouterr().out) is thinks
