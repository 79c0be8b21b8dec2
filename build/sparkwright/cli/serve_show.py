"""Show the plan, progress, ready line and state of ``sparkwright serve``."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import SparkwrightError
from sparkwright.base.events import Event, subscribe
from sparkwright.base.text import human_seconds
from sparkwright.cli.command import Part, Result, Table
from sparkwright.cli.output import printable, showing_events
from sparkwright.serve.plan import RECIPE_KEY, Plan
from sparkwright.serve.run import ServeOptions
from sparkwright.serve.settings import KEY_VARIABLE

_STATE = {
    "running": "{:.0f} running",
    "waiting": "{:.0f} waiting",
    "tokens_per_s": "{:.1f} tok/s",
    "prompt_tokens_per_s": "{:.0f} prompt tok/s",
    "acceptance_length": "acceptance {:.2f}",
    "kv_usage": "KV {:.1%}",
    "available_gib": "{:.1f} GiB left",
    "pressure": "pressure {:.1f} %",
}
_SHOWN = ("serve.", "warmup.", "warning", "server.evidence")
_LINES = {
    "serve.fetches": "fetches  {what}: {because}",
    "serve.incident": "evidence {folder}",
    "serve.makes": "makes    {name} {why}",
    "serve.peer": "peer     {host} from {interface} to {there}, {speed}",
    "serve.starting": "serving  {recipe} with {vllm}\nas       {title}\nlog      {log}",
    "serve.wheel": "wheel    {name}: {why}",
    "serve.worker": "worker   on {host}, log {log}",
}
# Flags that have the engine run Python of others than vLLM's.
_CODE = frozenset({
    "--logits-processors", "--middleware", "--reasoning-parser-plugin", "--scheduler-cls",
    "--tool-parser-plugin", "--trust-remote-code", "--worker-cls", "--worker-extension-cls",
})  # fmt: skip
_QUESTION = {"role": "user", "content": "Why is the sky blue?"}


def shown_plan(plan: Plan, worker: tuple[str, str] | None = None) -> Result:
    """Return what a start would do; *worker* is the second of two machines, with the command there."""
    parts: list[Part] = []
    if plan.wheel:
        parts.append(("wheel", f"{plan.wheel}{f': {plan.chosen}' if plan.chosen else ''}"))
        parts.append(("runtime", "installed" if plan.made else "to be installed first"))
    parts.append(("kernels", plan.companion))
    if plan.compiled:
        compiled = ", ".join(plan.compiled)
        parts.append(("compiled", f"{compiled}: by FlashInfer, while the engine starts or serves"))
        parts.append(("next", plan.next_step))
    parts.append(Table(("flag", "value", "why"), [(one.name, one.value, one.why) for one in plan.flags]))
    variables = [(one.name, one.value, one.why) for one in plan.variables]
    parts.append(Table(("variable", "value", "why"), variables))
    parts += [("note", note) for note in plan.notes]
    if code := [one.name for one in plan.flags if one.name in _CODE]:
        parts.append(("code", f"{', '.join(code)}: Python of the checkpoint or of others runs as you"))
    if keys := [one.name for one in plan.variables if one.why == RECIPE_KEY]:
        parts.append(("keys", f"{', '.join(keys)}: {RECIPE_KEY}"))
    assigned = " ".join(_assigned(one.name, one.value, plan.key_file) for one in plan.variables)
    parts.append(f"\nenv {assigned} \\\n  {plan.command}")
    if worker:
        parts.append(f"\non {worker[0]}:\n{worker[1]}")
    parts.append("\na dry run: nothing was started")
    return Result({**to_builtins(plan), **({"worker": worker} if worker else {})}, parts)


def _assigned(name: str, value: str, key_file: str) -> str:
    """Return an assignment for a shell; a hidden value comes out of the key's file, or of the shell."""
    if value != "***":
        return f"{name}={shlex.quote(value)}"
    in_file = key_file and name == KEY_VARIABLE
    return f'{name}="$(cat {shlex.quote(key_file)})"' if in_file else f'{name}="${name}"'


def example(
    url: str, model: str, key_file: object = None, *, shell_key: bool = False, thinks: bool = False
) -> str:
    """Return a command that asks the server one question; a key is never an argument of it.

    Args:
        url: root of the server's API.
        model: the served name.
        key_file: the file of the key, if it is in one.
        shell_key: the key is in a variable of the shell.
        thinks: the model thinks before it answers, unless its template is told not to.
    """
    body: dict[str, Any] = {"model": model, "messages": [_QUESTION], "max_tokens": 512, "temperature": 0}
    if thinks:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    text = shlex.quote(json.dumps(body))
    asked = f"curl -s {url}/chat/completions -H 'Content-Type: application/json' -d {text}"
    if not key_file and not shell_key:
        return asked
    key = f"$(cat {shlex.quote(str(key_file))})" if key_file else f"${KEY_VARIABLE}"
    header = f"""printf 'Authorization: Bearer %s\\n' "{key}" """
    return f"{header}| {asked.replace('curl -s', 'curl -s -H @-', 1)}"


def state_line(data: dict[str, Any]) -> str:
    """Return the server's state as one line; what cannot be read is left out."""
    return "  ".join(text.format(data[name]) for name, text in _STATE.items() if data[name] >= 0)


class Lines:
    """Prints events as lines of JSON, one each; what tasks do is not among them."""

    def __call__(self, event: Event) -> None:
        """Print *event* if it is about the server."""
        if event.kind.startswith(_SHOWN):
            click.echo(event.to_json())

    def fail(self, error: SparkwrightError) -> None:
        """Print *error* as the last line."""
        told = {"what": error.what, "because": error.because, "next-step": error.next_step}
        kind = {"error": type(error).__name__, "exit-code": error.exit_code}
        click.echo(json.dumps({"kind": "serve.failed", **kind, **told}))


class Screen:
    """Shows progress, and what happens to the server, as lines."""

    def __init__(self, options: ServeOptions, *, quiet: bool) -> None:
        self._options, self._quiet = options, quiet

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Show events inside the block."""
        with showing_events(quiet=self._quiet), subscribe(self._show):
            yield

    def _show(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case "serve.ready":
                self._ready(data)
            case "serve.status":
                self._say(f"state    {state_line(data)}")
            case kind if kind in _LINES:
                self._say(_LINES[kind].format(**data))
            case "serve.stopping":
                at_once = ": killed" if data["at_once"] else "; once more kills it"
                self._say(f"stopping on {data['signal']}{at_once}")
            case "serve.stopped":
                click.echo(f"stopped  after {human_seconds(data['seconds'])}; no process is left")
            case _:
                pass

    def _ready(self, data: dict[str, Any]) -> None:
        warm = ""
        if data["warm_up_s"] is not None:
            warm = f", warm-up {human_seconds(data['warm_up_s'])} ({data['warm_up_requests']} requests)"
        click.echo(
            f"ready    {data['url']}  {data['model']}, started in {human_seconds(data['boot_s'])}{warm}"
        )
        if os.environ.get("NOTIFY_SOCKET"):
            return  # a journal needs no command to type, and only the service may read the key's path
        key_file, has_key = self._options.key_file, bool(self._options.api_key)
        shown = example(data["url"], data["model"], key_file, shell_key=has_key, thinks=data["thinks"])
        click.echo(f"try      {shown}")
        click.echo("stop     Ctrl-C, which waits for the server to end; twice kills it")

    def _say(self, line: str) -> None:
        if not self._quiet:
            click.echo(printable(line))
