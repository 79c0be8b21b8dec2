"""Import once what most probes import, and run each probe in a fork: ``preloaded.py FOLDER TRITON``.

Importing torch and the packages around it takes most of a probe's time. This process does that, listens on
``FOLDER/socket``, and forks for every connection. A request is one line of JSON: the script to run, its
arguments, folder, environment and log. The fork leads a session of its own, answers with its process id, and
runs the script as a new interpreter would; the connection ends with it.

No module of the tree under test is imported here, so that a fork finds its own. No part of what a proof
hangs on: recorded proofs are made without it. Standard library only.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path

_MODULES = (
    "torch",
    "torch._dynamo",
    "torch._inductor.lowering",
    "torch._inductor.standalone_compile",
    "torch._inductor.kernel.flex.flex_attention",
    "transformers",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.modeling_auto",
    "compressed_tensors",
    "einops",
    "openai.types.chat",
    "openai.types.responses",
    "aiohttp",
    "cbor2",
    "jinja2",
    "regex",
    "zmq",
)


def preload(triton: str) -> None:
    """Import the modules, in the order that the harness and vLLM give it: Triton's interpreter first."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # as vLLM sets it before it imports the compiler
    if triton == "interpret":
        with contextlib.suppress(ImportError):
            importlib.import_module("harness").enable_triton_interpreter()
    for name in _MODULES:
        with contextlib.suppress(Exception):  # a probe that needs it will say so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def single_threaded() -> bool:
    """Tell if this process has no other thread: only then is a fork a whole copy of it."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


def serve(listening: socket.socket, parent: int) -> None:
    """Fork for every connection until the parent closes its end or dies."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel clears away what has ended
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            run(connection, parent)
        connection.close()


def run(connection: socket.socket, parent: int) -> None:
    """Run what *connection* asks for in this process, and end it."""
    status = 1
    try:
        os.setsid()
        importlib.import_module("launch").die_with(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asked = json.loads(connection.makefile("rb").readline())
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, handle in enumerate((nothing, log, log)):
            os.dup2(handle, number)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        tempfile.tempdir = None
        sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
        sys.modules.pop("harness", None)
        sys.argv = [asked["script"], *asked["arguments"]]
        connection.sendall(f"{os.getpid()}\n".encode())
        runpy.run_path(asked["script"], run_name="__main__")
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def main(folder: str, triton: str) -> int:
    """Preload, listen, and serve; end with 3 where no whole copy can be forked."""
    sys.path.insert(0, str(Path(__file__).parent))
    preload(triton)
    if not single_threaded():
        return 3
    os.chdir(folder)  # a socket's path may have a hundred characters only
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("binding")
        listening.listen(64)
        Path("binding").rename("socket")
        serve(listening, os.getpid())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
