"""A server with as little of vLLM's API as a canary needs, with an engine, and its faults.

Run as a program: ``fake_server.py --port N [--fault NAME …]``. Standard library only.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="fake"} 0.0
vllm:num_requests_waiting{engine="0",model_name="fake"} 0.0
vllm:generation_tokens_total{engine="0",model_name="fake"} 8.0
vllm:cache_config_info{block_size="16",cache_dtype="fp8_e4m3",engine="0",gpu_memory_utilization="0.7",\
kv_cache_max_concurrency="26.1",kv_cache_size_tokens="1069056",num_gpu_blocks="66816"} 1.0
"""
# An engine that ignores SIGTERM; with an argument it also leaves the session.
ENGINE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 1:
    os.setsid()
print("engine-process", os.getpid(), flush=True)
time.sleep(600)
"""


class Handler(BaseHTTPRequestHandler):
    """Responds to canaries."""

    faults: frozenset[str] = frozenset()
    key = ""
    protocol_version = "HTTP/1.1"

    def refused(self) -> bool:
        """Refuse a request without the key, as vLLM does below /v1."""
        if not self.key or self.headers["Authorization"] == f"Bearer {self.key}":
            return False
        self.send_error(401)
        return True

    def do_GET(self) -> None:
        if self.path.startswith("/v1") and self.refused():
            return
        match self.path:
            case "/health":
                self.answer("text/plain", b"")
            case "/v1/models":
                self.answer("application/json", json.dumps({"data": [{"id": "fake"}]}).encode())
            case "/metrics":
                self.answer("text/plain", METRICS.encode())
            case _:
                self.send_error(404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        if "no-tokens" in self.faults:
            time.sleep(600)
        if "error-500" in self.faults:
            self.send_error(500)
            return
        tokens = int(asked["max_tokens"])
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
        last = {"index": 0, "text": "d", "finish_reason": "length", "token_ids": [8]}
        events: list[dict[str, Any]] = [
            {
                "choices": [
                    {"index": 0, "text": "wor", "finish_reason": None, "token_ids": [7] * (tokens - 1)}
                ]
            },
            {"choices": [last]},
            {"choices": [], "usage": usage},
        ]
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        self.answer("text/event-stream", body + b"data: [DONE]\n\n")
        if "die-after-first" in self.faults:
            say("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
            threading.Timer(0.2, os._exit, (1,)).start()

    def answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def fetch(path: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    with path.open("ab", buffering=0) as stream:
        while time.monotonic() < end:
            stream.write(os.urandom(1 << 16))
            os.fsync(stream)
            time.sleep(0.1)


def compile_in(folder: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        (folder / f"{time.monotonic_ns()}.o").touch()
        time.sleep(1.0)


def wait_for_listener(port: int) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--say", type=Path, help="file whose lines it prints while it starts")
    parser.add_argument("--exit", type=int, help="status to end with after that")
    parser.add_argument("--fetch", nargs=2, help="file that grows while it starts, and for how many seconds")
    parser.add_argument("--compile", nargs=2, help="folder that gets files, and for how many seconds")
    args = parser.parse_args()
    Handler.faults = frozenset(args.fault)
    Handler.key = os.environ.get("VLLM_API_KEY", "") or os.environ.get("FAKE_KEY", "")
    escape = ["escape"] if "engine-escapes" in args.fault else []
    engine = subprocess.Popen([sys.executable, "-c", ENGINE, *escape])
    if args.say is not None:
        say(args.say.read_text(encoding="utf-8"))
    if "killed" in args.fault:
        os.kill(os.getpid(), signal.SIGKILL)
    if args.exit is not None:
        return int(args.exit)
    if "deaf" in args.fault:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.fetch is not None:
        fetch(Path(args.fetch[0]), float(args.fetch[1]))
    if args.compile is not None:
        compile_in(Path(args.compile[0]), float(args.compile[1]))
    if "never-listens" in args.fault:
        time.sleep(600)
    if "waits" in args.fault:
        wait_for_listener(args.port)
    ThreadingHTTPServer.allow_reuse_port = "shares-its-port" in args.fault
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    if "deaf" not in args.fault:
        # As vLLM: on SIGTERM it ends its engine and then itself.
        keep = bool({"orphan", "engine-escapes"} & Handler.faults)
        signal.signal(signal.SIGTERM, lambda *_: (say("goodbye"), keep or engine.kill(), os._exit(0)))
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
