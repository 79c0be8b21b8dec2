"""Ask the vLLM that will serve, in its own environment, if it has the options that it is started with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkwright.engine.installed import EngineFacts
from sparkwright.serve.release_child import AskedRelease, ReleaseAnswer, child
from sparkwright.store import Store

_KIND = "installed"


def ask_installed(
    store: Store,
    python: Path | None,
    engine: EngineFacts,
    commands: Sequence[Sequence[str]],
    *,
    identity: str = "",
) -> ReleaseAnswer | None:
    """Return the options of an installed vLLM, and the outcome of parsing each of *commands* by it.

    Answers are recorded under the digest of its files, which a wheel has as well before it is installed.

    Args:
        store: where answers are recorded.
        python: its interpreter; `None` for a wheel that is not installed, which only records answer for.
        engine: facts about it.
        commands: arguments of ``vllm``, from ``serve`` on.
        identity: digest of its content, for one that has no list of its files; without either, nothing is
            recorded.

    Raises:
        ToolError: it could not be asked.
    """
    content = engine.files or identity
    lines = [tuple(command[1:]) for command in commands]
    key = (content, _KIND, engine.version) if content else ()
    if python is None:
        return AskedRelease(store, engine.version, key, lambda _: []).recorded(lines)
    # Bytecode stays beside the modules, where the engine looks for it next.
    start: list[str | Path] = [python, "-I", child()]
    return AskedRelease(store, engine.version, key, lambda _: start).ask(lines)
