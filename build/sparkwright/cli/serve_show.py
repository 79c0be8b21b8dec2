"""Show the plan, progress, ready line and state of ``sparkwright serve``."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import SparkwrightError
from sparkwright.base.events import Event, subscribe
from sparkwright.base.text import human_seconds
from sparkwright.cli.output import print_json, printable
from sparkwright.cli.tables import show_table
from sparkwright.cli.terminal import Sink, display
from sparkwright.serve.plan import RECIPE_KEY, Plan
from sparkwright.serve.run import ServeOptions
from sparkwright.serve.settings import KEY_VARIABLE

if TYPE_CHECKING:
    from rich.status import Status as Spinner


_SHOWN = ("serve.", "warmup.", "warning", "server.evidence")
_LINES = {
    "serve.fetches": "fetches  {what}: {because}",
    "serve.incident": "evidence {folder}",
    "serve.makes": "makes    {name} {why}",
    "serve.peer": "peer     {host} from {interface} to {there}, {speed}",
    "serve.wheel": "wheel    {name}: {why}",
    "serve.worker": "worker   on {host}, log {log}",
}
# Flags that have the engine run Python of others than vLLM's.
_CODE = frozenset({
    "--logits-processors", "--middleware", "--reasoning-parser-plugin", "--scheduler-cls",
    "--tool-parser-plugin", "--trust-remote-code", "--worker-cls", "--worker-extension-cls",
})  # fmt: skip
_TERMINAL_S, _PLAIN_S = 2.0, 30.0
_QUESTION = {"role": "user", "content": "Why is the sky blue?"}


def show_plan(plan: Plan, *, worker: tuple[str, str] | None = None, as_json: bool) -> None:
    """Print a plan; *worker* is the second of two machines, with the command there."""
    if as_json:
        print_json({**to_builtins(plan), **({"worker": worker} if worker else {})})
        return
    if plan.wheel:
        click.echo(f"wheel    {plan.wheel}{f': {plan.chosen}' if plan.chosen else ''}")
        click.echo(f"runtime  {'installed' if plan.made else 'to be installed first'}")
    if plan.companion:
        click.echo(f"kernels  {plan.companion}")
    if plan.compiled:
        click.echo(f"compiled {', '.join(plan.compiled)}: by FlashInfer, while the engine starts or serves")
        click.echo(f"next     {plan.next_step}")
    show_table(("flag", "value", "why"), [(one.name, one.value, one.why) for one in plan.flags])
    show_table(("variable", "value", "why"), [(one.name, one.value, one.why) for one in plan.variables])
    for note in plan.notes:
        click.echo(f"note     {printable(note)}")
    if code := [one.name for one in plan.flags if one.name in _CODE]:
        click.echo(f"code     {', '.join(code)}: Python of the checkpoint or of others runs as you")
    if keys := [one.name for one in plan.variables if one.why == RECIPE_KEY]:
        click.echo(f"keys     {', '.join(keys)}: {RECIPE_KEY}")
    assigned = " ".join(_assigned(one.name, one.value, plan.key_file) for one in plan.variables)
    click.echo(printable(f"\nenv {assigned} \\\n  {plan.command}"))
    if worker:
        click.echo(printable(f"\non {worker[0]}:\n{worker[1]}"))
    click.echo("\na dry run: nothing was started")


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
    parts = (
        [f"{data['running']:.0f} running", f"{data['waiting']:.0f} waiting"] if data["running"] >= 0 else []
    )
    if data["tokens_per_s"] >= 0:
        parts.append(f"{data['tokens_per_s']:.1f} tok/s")
    if data["prompt_tokens_per_s"] > 0:
        parts.append(f"{data['prompt_tokens_per_s']:.0f} prompt tok/s")
    if data["acceptance_length"] >= 0:
        parts.append(f"acceptance {data['acceptance_length']:.2f}")
    if data["kv_usage"] >= 0:
        parts.append(f"KV {data['kv_usage']:.1%}")
    if data["available_gib"] >= 0:
        parts.append(f"{data['available_gib']:.1f} GiB left")
    if data["pressure"] >= 0:
        parts.append(f"pressure {data['pressure']:.1f} %")
    return "  ".join(parts)


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
    """Shows progress until the server is ready, then its state: a line that changes, or lines."""

    def __init__(self, options: ServeOptions, *, quiet: bool) -> None:
        self._options, self._quiet = options, quiet
        self._open = contextlib.ExitStack()
        self._sink: Sink | None = None
        self._spinner: Spinner | None = None

    @staticmethod
    def interval_s() -> float:
        """Return the seconds between two states, for a terminal or for a file."""
        return _TERMINAL_S if sys.stdout.isatty() else _PLAIN_S  # noqa: TID251

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Show events inside the block."""
        try:
            with subscribe(self._show):
                self._starts(quiet=self._quiet)
                yield
        finally:
            self._quieten()
            self._open.close()

    def _starts(self, *, quiet: bool) -> None:
        """Show the progress of a start; with *quiet*, warnings alone."""
        self._quieten()
        self._open.close()
        self._sink = self._open.enter_context(display(quiet=quiet))

    def _show(self, event: Event) -> None:
        data = event.data
        if self._sink is not None:
            self._sink(event)
        match event.kind:
            case "serve.starting":
                self._say(f"serving  {data['recipe']} with {data['vllm']}")
                self._say(f"as       {data['title']}")
                self._say(f"log      {data['log']}")
            case "serve.ready":
                self._ready(data)
            case "serve.status":
                self._state(data)
            case kind if kind in _LINES:
                self._say(_LINES[kind].format(**data))
            case "serve.stopping":
                at_once = ": killed" if data["at_once"] else "; once more kills it"
                self._say(f"stopping on {data['signal']}{at_once}")
            case "serve.stopped":
                self._quieten()
                click.echo(f"stopped  after {human_seconds(data['seconds'])}; no process is left")
            case _:
                pass

    def _ready(self, data: dict[str, Any]) -> None:
        # From here on the line that changes has the state.
        self._starts(quiet=self._quiet or sys.stderr.isatty())  # noqa: TID251
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

    def _state(self, data: dict[str, Any]) -> None:
        if self._quiet:
            return
        if sys.stdout.isatty():  # noqa: TID251
            self._wait_for(state_line(data))
        else:
            click.echo(f"state    {state_line(data)}")

    def _say(self, line: str) -> None:
        if not self._quiet:
            click.echo(printable(line))

    def _wait_for(self, text: str) -> None:
        """Show *text* in the line that changes, on a terminal."""
        if self._quiet or not sys.stderr.isatty():  # noqa: TID251
            return
        if self._spinner is None:
            from rich.console import Console

            self._spinner = Console(stderr=True).status(text)
            self._spinner.start()
        else:
            self._spinner.update(text)

    def _quieten(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
