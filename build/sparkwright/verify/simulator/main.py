"""``sparkwright-simulator``: its options, and the server's process from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

from sparkwright.base.config import json_decoder
from sparkwright.base.errors import ServerError, SparkwrightError
from sparkwright.base.process.run import UnguardedProcess, start_unguarded
from sparkwright.base.process.session import Running, start
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.verify.simulator.faults import parse_faults
from sparkwright.verify.simulator.machine import Clock, Driver, Log, boot_lines, failing_lines
from sparkwright.verify.simulator.server import CHILD, listening
from sparkwright.verify.simulator.settings import Settings, StepCosts
from sparkwright.verify.simulator.stream import RequestTrace, TraceFile

_BOOT_S = 60.0
_EXCERPT = 1000


@contextlib.asynccontextmanager
async def simulator(folder: Path, *options: str, seqs: int = 64) -> AsyncIterator[Endpoint]:
    """Run a simulated server in a process of its own that writes ``truth.jsonl`` into *folder*.

    Raises:
        ServerError: it did not start.
    """
    ready = folder / "ready.json"
    files = ("--ready-file", ready, "--log", folder / "log", "--truth", folder / "truth.jsonl")
    command = [sys.executable, "-m", "sparkwright.verify.simulator.main", "--boot-seconds", "0"]
    argv = [*command, "--max-num-seqs", str(seqs), *map(str, files), *options]
    running = start(argv, cwd=Path.cwd(), env=os.environ, log=folder / "output")
    try:
        server = await _ready(ready, running, folder / "output")
        yield Endpoint(server["url"], server["model"])
    finally:
        running.kill()


async def _ready(ready: Path, running: Running, output: Path) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    end = loop.time() + _BOOT_S
    while loop.time() < end and running.poll() is None:
        if content := _read(ready):
            server: dict[str, Any] = json.loads(content)
            return server
        await asyncio.sleep(0.05)
    raise ServerError(
        "the simulator did not start",
        because=_read(output)[-_EXCERPT:].decode(errors="replace") or "it wrote nothing",
        next_step="run sparkwright-simulator by hand and read its output",
    )


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def read_truth(path: Path) -> dict[str, RequestTrace]:
    """Return the simulator's lines by request; a line that is still being written is left out."""
    decoder = json_decoder(RequestTrace)
    truths = [decoder.decode(line) for line in _read(path).split(b"\n")[:-1]]
    return {truth.id: truth for truth in truths}


async def serve(settings: Settings) -> int:
    """Boot, listen, and serve until a signal or the engine's death; returns the exit status."""
    clock = Clock(settings.speed)
    orphan = "orphan" in settings.faults
    child = start_unguarded([*CHILD, "engine", f"{orphan:d}"]) if settings.engine else None
    log = Log(settings.log, clock, (os.getpid(), child.pid if child else os.getpid()))
    truth = TraceFile(settings.truth)
    try:
        if not await _boot(settings, clock, log):
            return 1
        return await _listen(settings, clock, log, truth, child)
    finally:
        truth.close()
        log.close()
        if child and not orphan:
            child.kill()
            child.wait()


async def _boot(settings: Settings, clock: Clock, log: Log) -> bool:
    """Log the lines of a start at their times; returns False when the start fails."""
    failing = failing_lines(settings)
    lines = list(boot_lines(settings))
    lines = lines[: len(lines) // 2] if failing else lines
    seconds = settings.faults.value("boot-slow", "seconds") or settings.boot_s
    for index, line in enumerate(lines):
        if index == len(lines) // 2 and "boot-killed" in settings.faults:
            os.kill(os.getpid(), signal.SIGKILL)
        log.write(**line._asdict())
        await clock.sleep(seconds / len(lines))
    for line in failing:
        log.write(**line._asdict())
    return not failing


async def _listen(
    settings: Settings, clock: Clock, log: Log, truth: TraceFile, child: UnguardedProcess | None
) -> int:
    """Serve until the end; returns the exit status."""
    async with listening(settings, clock, log, truth) as (driver, url):
        log.write(f"Starting vLLM server on {url}", where="api_server.py:581")
        log.write("Application startup complete.", where="on.py:62")
        _write_ready(settings, url)
        ignore = _watch(driver, child)
        try:
            return await driver.exit_status
        finally:
            ignore()
            log.write("Shutting down", where="launcher.py:99")


def _write_ready(settings: Settings, url: str) -> None:
    """Write the URL and process id to the ready file, atomically."""
    if settings.ready is None:
        return
    ready = {"url": url, "pid": os.getpid(), "model": settings.model}
    part = settings.ready.with_name(settings.ready.name + ".part")
    part.write_text(json.dumps(ready), encoding="utf-8")
    part.replace(settings.ready)


def _watch(driver: Driver, child: UnguardedProcess | None) -> Callable[[], None]:
    """End on signals, and detect the death of the engine's process until the returned function is called."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, driver.stop, 0)
    if child is None:
        return lambda: None
    descriptor = os.pidfd_open(child.pid)

    def ignore() -> None:
        if loop.remove_reader(descriptor):
            os.close(descriptor)

    def died() -> None:
        ignore()
        driver.fail(f"Engine core proc EngineCore died unexpectedly (status {child.wait()}).")

    loop.add_reader(descriptor, died)
    return ignore


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    try:
        status = _command.main(
            args=None if argv is None else list(argv),
            prog_name="sparkwright-simulator",
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SparkwrightError as error:
        click.echo(str(error), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return int(status or 0)


def _settings() -> Iterator[click.Option]:
    """Yield the options that set fields of `Settings`."""
    for name, annotated in get_type_hints(Settings, include_extras=True).items():
        if get_origin(annotated) is not Annotated:
            continue
        (kind, words, *flags), default = get_args(annotated), getattr(Settings, name)
        flag = flags[0] if flags else f"--{name.replace('_', '-')}"
        yield click.Option(
            [f"{flag}/--no-{flag[2:]}" if kind is bool else flag, name],
            default=default,
            type=click.Choice(choices) if get_origin(kind) is Literal and (choices := get_args(kind))
            else click.Path(path_type=Path) if default is None else None,
            help=words,
        )  # fmt: skip


@click.command(context_settings={"show_default": True}, params=[*_settings()])
@click.option("--step-ms", default="", help="BASE,REQUEST,CONTEXT,PREFILL: duration of a step.")
@click.option("--draft-ms", default=StepCosts.draft, help="Added for each drafted token of a step.")
@click.option("--fault", "faults", multiple=True, metavar="NAME[=VALUE]", help="Fault to switch on.")
def _command(
    *,
    step_ms: str,
    draft_ms: float,
    faults: tuple[str, ...],
    **options: Any,
) -> int:
    """Serve like vLLM with speculative decoding, without computing anything."""
    settings = Settings(
        **options, costs=replace(_costs(step_ms), draft=draft_ms), faults=parse_faults(faults)
    )
    if "no-speculation" in settings.faults:
        settings = replace(settings, k=0)
    return asyncio.run(serve(settings))


def _costs(text: str) -> StepCosts:
    if not text:
        return StepCosts()
    try:
        return StepCosts(*(float(part) for part in text.split(",")))
    except (TypeError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is not BASE,REQUEST,CONTEXT,PREFILL") from error


if __name__ == "__main__":
    raise SystemExit(main())
