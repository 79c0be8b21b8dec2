"""``sparkwright-simulator``: the command line, and the server's process from its start to its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.process import UnguardedProcess, start_unguarded
from sparkwright.verify.simulator.clock import Clock
from sparkwright.verify.simulator.driver import Driver
from sparkwright.verify.simulator.faults import FAULTS, parse_faults
from sparkwright.verify.simulator.stream import TraceFile
from sparkwright.verify.simulator.log import Log, boot_lines, failing_lines
from sparkwright.verify.simulator.server import listening
from sparkwright.verify.simulator.settings import (
    DIALECT,
    VERSIONS,
    Settings,
    StepCosts,
    fit_max_model_len,
)


async def serve(settings: Settings) -> int:
    """Boot, listen, and serve until a signal or the engine's death; returns the exit status."""
    clock = Clock(settings.speed)
    child = _start_engine(settings)
    log = Log(settings.log, clock, (os.getpid(), child.pid if child else os.getpid()))
    truth = TraceFile(settings.truth)
    try:
        if not await _boot(settings, clock, log):
            return 1
        return await _listen(settings, clock, log, truth, child)
    finally:
        truth.close()
        log.close()
        if child and "orphan" not in settings.faults:
            child.kill()
            child.wait()


def _start_engine(settings: Settings) -> UnguardedProcess | None:
    if not settings.engine:
        return None
    orphan = "1" if "orphan" in settings.faults else "0"
    return start_unguarded(
        [sys.executable, "-I", "-S", Path(__file__).with_name("engine_process.py"), orphan]
    )


async def _boot(settings: Settings, clock: Clock, log: Log) -> bool:
    """Log the lines of a start at their times; returns False when the start fails."""
    failing = failing_lines(settings)
    lines = list(boot_lines(settings))
    lines = lines[: len(lines) // 2] if failing else lines
    seconds = settings.faults.value("boot-slow", "seconds") or settings.boot_s
    for index, line in enumerate(lines):
        if index == len(lines) // 2 and "boot-killed" in settings.faults:
            os.kill(os.getpid(), signal.SIGKILL)
        log.line(line)
        await clock.sleep(seconds / len(lines))
    for line in failing:
        log.line(line)
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


_DEFAULTS = Settings()


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


@click.command(context_settings={"show_default": True})
@click.option("--host", default=_DEFAULTS.host, help="Address to listen on.")
@click.option("--port", default=0, help="0 takes a free one.")
@click.option(
    "--ready-file", "ready", type=click.Path(path_type=Path), help="Written as JSON once it listens."
)
@click.option("--log", type=click.Path(path_type=Path), help="File for its log; else standard error.")
@click.option("--truth", type=click.Path(path_type=Path), help="File for a JSON line about each request.")
@click.option(
    "--dialect", default=DIALECT, type=click.Choice(list(VERSIONS)), help="The vLLM release to imitate."
)
@click.option("--speed", default=1.0, help="Simulated seconds in a real one.")
@click.option("--seed", default=0, help="Seed of every random draw.")
@click.option("--model", default=_DEFAULTS.model, help="Served model name.")
@click.option("--api-key", default="", help="Key that requests must carry.")
@click.option("--k", default=_DEFAULTS.k, help="Drafted tokens a step; 0 serves without speculation.")
@click.option("--method", default=_DEFAULTS.method, help="Method of drafting.")
@click.option("--max-num-seqs", default=_DEFAULTS.max_num_seqs, help="Requests that may run at a time.")
@click.option(
    "--max-batched-tokens",
    default=_DEFAULTS.max_batched_tokens,
    help="Tokens of prompts and drafts in a step.",
)
@click.option("--max-model-len", default=0, help="Tokens of the longest request; 0 for the most that fits.")
@click.option("--kv-tokens", default=0, help="KV cache size in tokens; 0 for the rest of the memory.")
@click.option(
    "--kv-dtype", default="fp8", type=click.Choice(["bfloat16", "fp8", "nvfp4"]), help="KV cache type."
)
@click.option("--runner", default="v1", type=click.Choice(["v1", "v2"]), help="Model runner.")
@click.option("--prefix-caching/--no-prefix-caching", default=True, help="Reuse cached blocks.")
@click.option("--prompt-details/--no-prompt-details", default=True, help="Include cached tokens in usage.")
@click.option("--reasoning", is_flag=True, help="Begin chat output with reasoning.")
@click.option("--images/--no-images", default=True, help="Let chats hold pictures.")
@click.option("--tool-parser/--no-tool-parser", default=True, help="Let chats offer tools.")
@click.option("--tool-template/--no-tool-template", default=True, help="Describe tools to the model.")
@click.option("--boot-seconds", "boot_s", default=_DEFAULTS.boot_s, help="Simulated time until it is ready.")
@click.option("--step-ms", default="", help="BASE,REQUEST,CONTEXT,PREFILL: duration of a step.")
@click.option("--draft-ms", default=_DEFAULTS.costs.draft, help="Added for each drafted token of a step.")
@click.option("--fault", "faults", multiple=True, metavar="NAME[=VALUE]", help="Fault to switch on.")
@click.option(
    "--server",
    "shape",
    default="vllm",
    type=click.Choice(["vllm", "other"]),
    help="The server whose endpoints it imitates.",
)
@click.option("--engine/--no-engine", default=True, help="Start the engine's process.")
@click.option("--list-faults", is_flag=True, help="List the faults and end.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def _command(
    *,
    list_faults: bool,
    as_json: bool,
    step_ms: str,
    draft_ms: float,
    faults: tuple[str, ...],
    **options: Any,
) -> int:
    """Serve like vLLM with speculative decoding, without computing anything."""
    if list_faults:
        click.echo(_fault_table(as_json=as_json))
        return 0
    settings = Settings(
        **options, costs=replace(_costs(step_ms), draft=draft_ms), faults=parse_faults(faults)
    )
    if "no-speculation" in settings.faults:
        settings = replace(settings, k=0)
    return asyncio.run(serve(fit_max_model_len(settings)))


def _costs(text: str) -> StepCosts:
    if not text:
        return StepCosts()
    try:
        return StepCosts(*(float(part) for part in text.split(",")))
    except (TypeError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is not BASE,REQUEST,CONTEXT,PREFILL") from error


def _fault_table(*, as_json: bool) -> str:
    if as_json:
        rows = [
            {
                "name": fault.name,
                "does": fault.does,
                "noticed-by": list(fault.noticed_by),
                "parameters": dict(fault.parameters),
            }
            for fault in FAULTS.values()
        ]
        return json.dumps(rows, indent=1)
    return "\n".join(
        f"{fault.name:20} {fault.does}"
        + "".join(f" [{name}={value:g}]" for name, value in fault.parameters.items())
        + (f" -> {', '.join(fault.noticed_by)}" if fault.noticed_by else " -> stays green")
        for fault in FAULTS.values()
    )


if __name__ == "__main__":
    raise SystemExit(main())
