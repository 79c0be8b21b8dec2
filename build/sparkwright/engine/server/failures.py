"""Known causes of a server's failed start or end, by its log and its exit status."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from sparkwright.engine.server.bootlog import plain


@dataclass(frozen=True)
class Cause:
    """A known cause.

    Attributes:
        name: short and unique.
        sign: expression that matches the log; empty where the exit status shows the cause.
    """

    name: str
    because: str
    next_step: str
    sign: str = ""


# In this order: what happened first explains what followed from it.
CAUSES: tuple[Cause, ...] = (
    Cause(
        "port-in-use",
        "its port is taken",
        "end what listens there, or let a free port be chosen",
        r"\[Errno 98\]|address already in use(?!\. Retrying)",
    ),
    Cause(
        "not-installed",
        "vLLM is not installed in that environment",
        "name the interpreter of the environment that vLLM is installed in",
        r"No module named '?vllm\b",
    ),
    Cause(
        "no-card",
        "no CUDA device can be used",
        "check that nvidia-smi lists the card for this user",
        r"Failed to infer device type|no CUDA-capable device|libcuda\.so\.1: cannot open"
        r"|No CUDA GPUs are available",
    ),
    Cause(
        "card-occupied",
        "other programs leave less memory on the card than the server may use",
        "end them, or lower gpu-memory-utilization",
        r"is less than desired GPU memory utilization",
    ),
    Cause(
        "cuda-out-of-memory",
        "CUDA out of memory",
        "lower gpu-memory-utilization, max-num-seqs or max-num-batched-tokens; on unified memory the host's "
        "programs count too",
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory",
    ),
    Cause(
        "no-kv-memory",
        "too little memory is left for the KV cache",
        "raise gpu-memory-utilization or lower max-model-len",
        r"No available memory for the cache blocks|larger than the available KV cache memory",
    ),
    Cause(
        "model-missing",
        "the model or the drafter could not be found",
        "check both names; offline, both must be in the cache or folders",
        r"is not a valid model identifier|Repository Not Found|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|Can't load the configuration of|Invalid repository ID",
    ),
    Cause(
        "options-refused",
        "vLLM refused its options",
        "correct the recipe by the log's message",
        r"error: unrecognized arguments|error: argument |validation errors? for \w*Config",
    ),
    Cause(
        "kernel-fault",
        "a kernel accessed memory that is not its own, or was given shapes that it does not take",
        "keep the evidence: this is a fault of the wheel's, or of what it was built for",
        r"illegal memory access|device-side assert|block_table must have shape|batch_size must be equal"
        r"|no kernel image is available",
    ),
    Cause(
        "engine-init",
        "the engine did not come up",
        "the first error in the log is the root cause",
        r"Engine core initialization failed|EngineCore failed to start",
    ),
    Cause(
        "engine-died",
        "the engine ended by itself",
        "the first error in the log is the root cause",
        r"EngineDeadError|EngineCore encountered",
    ),
)
_KILLED = Cause(
    "killed",
    "it was killed (exit 137, SIGKILL), as the kernel does when memory runs out",
    "look for 'Out of memory' in dmesg; lower gpu-memory-utilization, for unified memory is the host's too",
)
_ROOT = re.compile(r"(?:^|\s)((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt): \S.*)$", re.MULTILINE)
_KILLED_STATUS = {137, -signal.SIGKILL}
_LEAST_SIGNAL = 128


def diagnose(log: str, status: int | None) -> Cause:
    """Return the cause of a failure.

    Args:
        log: the server's log.
        status: its exit status, negative for a signal; `None` while it runs.
    """
    text = plain(log)
    for cause in CAUSES:
        if re.search(cause.sign, text, re.IGNORECASE):
            return Cause(cause.name, _with_root(cause.because, text), cause.next_step, cause.sign)
    if status in _KILLED_STATUS:
        return _KILLED
    how = "it does not answer" if status is None else f"it ended with {_named(status)}"
    return Cause("unknown", _with_root(how, text), "see the end of the log")


def tail(log: str, *, lines: int = 40) -> str:
    """Return the last *lines* of a log, with the last state of each progress bar."""
    kept = [line.rsplit("\r", 1)[-1].rstrip() for line in plain(log).rstrip("\n").split("\n")]
    return "\n".join(kept[-lines:])


def excerpt(log: str, *, before: int = 6, lines: int = 12) -> str:
    """Return the lines of a log that end with the first Python error; without one, its last *lines*."""
    text = plain(log)
    found = _ROOT.search(text)
    if found is None:
        return tail(log, lines=lines)
    end = text.find("\n", found.start(1))
    return tail(text[: end if end >= 0 else len(text)], lines=before)


def _with_root(because: str, text: str) -> str:
    """Return *because* with the first Python error in the log."""
    found = _ROOT.search(text)
    root = found.group(1)[:300] if found else ""
    return f"{because} ({root})" if root and root not in because else because


def _named(status: int) -> str:
    number = -status if status < 0 else status - _LEAST_SIGNAL if status > _LEAST_SIGNAL else 0
    try:
        return f"status {status} ({signal.Signals(number).name})" if number else f"status {status}"
    except ValueError:
        return f"status {status}"
