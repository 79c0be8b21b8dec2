"""Two machines as two network namespaces of this one: two links, an sshd in the second, and a made-up /sys.

The fast link is a pair of ConnectX ports by what /sys says of it; the slow one is what ssh's name leads to.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import SEVERAL
from kit import write_program
from serve_kit import Serving
from ssh_kit import SSH_CONFIG, SSHD, SSHD_CONFIG, wrap_ssh
from world import SOURCE_ROOT, wait_until

FAST, SLOW = "enp1s0f0np0", "enP7s7"
NAME = "spark-b"
MODEL = "org/tiny"
_MOUNTED = 'mount --bind "$1" /sys/class && shift && exec "$@"'
_SERVER = """\
Port 22
SetEnv HOME={there} XDG_CACHE_HOME={there}/cache HF_HOME={there}/hf PATH={folder}/there:/usr/bin:/bin
"""
_CLIENT = """\
Host {name}
  HostName 10.77.2.2
"""
VLLM = '''\
"""``vllm serve`` on one of two machines: the worker holds a connection to the head, a simulator."""
import json
import os
import socket
import subprocess
import sys
import time

words = sys.argv[1:]


def option(name):
    return words[words.index(name) + 1]


address = (option("--master-addr"), 29501)
if "--headless" in words:
    print("WORKER", json.dumps({"argv": sys.argv, "python": sys.executable, **os.environ}), flush=True)
    print("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]", flush=True)
    # One that leaves the group, as a worker's helpers may.
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    deadline = time.monotonic() + 60
    while True:
        try:
            link = socket.create_connection(address, timeout=1)
            break
        except OSError:
            assert time.monotonic() < deadline, "no head"
            time.sleep(0.1)
    while True:  # as upstream's, it does not see that its head is gone
        time.sleep(0.1)

server = socket.create_server(address)
link, _ = server.accept()
sys.path += os.environ["SIMULATOR_PATH"].split(":")
from sparkwright.verify.simulator.main import main

arguments = ["--host", option("--host"), "--port", option("--port"), "--model", option("--served-model-name")]
sys.exit(main([*arguments, "--speed", "600", "--k", "0", "--max-model-len", "4096"]))
'''
_RECIPE = """\
format = 1
name = "tiny-2x"
title = "The simulator on two machines"
model = "{model}"
nodes = {nodes}

[flags]
tensor-parallel-size = 2
max-model-len = 4096
gpu-memory-utilization = 0.3

[environment]
SIMULATOR_PATH = "{path}"
"""


def _run(*words: str | Path) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True, timeout=30)


@dataclass
class TwoHosts:
    """Two machines; the first one runs sparkwright.

    Attributes:
        folder: with the homes ``here`` and ``there``, and ssh's files.
        python: the interpreter of an environment with vLLM.
        recipe: for two machines.
    """

    folder: Path
    namespaces: tuple[str, str]
    python: Path
    recipe: Path
    sshd: subprocess.Popen[bytes] | None = None
    caller: subprocess.Popen[str] | None = None

    @property
    def there(self) -> Path:
        return self.folder / "there"

    @property
    def copies(self) -> Path:
        return self.there / "cache" / "sparkwright-peer"

    def sysfs(self, host: int, speed: dict[str, int]) -> None:
        """Write what /sys says of the interfaces of a machine."""
        root = self.folder / f"sys-{host}"
        for name, mbps in speed.items():
            place = root / "net" / name
            (place / "device").mkdir(parents=True, exist_ok=True)
            (place / "operstate").write_text("up\n")
            (place / "speed").write_text(f"{mbps}\n")
        (root / "net" / FAST / "device" / "infiniband" / "rocep1s0f0").mkdir(parents=True, exist_ok=True)
        port = root / "infiniband" / "rocep1s0f0" / "ports" / "1"
        port.mkdir(parents=True, exist_ok=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")

    def inside(self, host: int, *words: str | Path) -> list[str]:
        """Return the command that runs *words* on a machine."""
        mounted = ["sh", "-c", _MOUNTED, "sh", str(self.folder / f"sys-{host}")]
        return ["ip", "netns", "exec", self.namespaces[host], *mounted, *map(str, words)]

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the second machine, but the sshd that listens."""
        told = subprocess.run(
            ["ip", "netns", "pids", self.namespaces[1]],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        own = self.sshd.pid if self.sshd else 0
        found = []
        for pid in map(int, told.stdout.split()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if pid != own and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_until_gone(self, seconds: float = 60.0) -> None:
        """Wait until nothing runs on the second machine."""
        wait_until(lambda: not self.processes(), patience_s=seconds)

    def start_sshd(self) -> None:
        words = self.inside(1, str(SSHD), "-D", "-e", "-f", self.folder / "ssh" / "sshd")
        with (self.folder / "ssh" / "log").open("ab") as log:
            self.sshd = subprocess.Popen(words, stderr=log)

    def kill_sshd(self) -> None:
        """Kill sshd with every connection that it serves."""
        for process in psutil.process_iter(["name"]):
            if process.info["name"].startswith("sshd") and process in self.processes():
                process.kill()
        assert self.sshd is not None
        self.sshd.kill()
        self.sshd.wait()

    def call(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run ``sparkwright serve`` with *words* to its end, in one process with those before."""
        if self.caller is None:
            self.caller = subprocess.Popen(
                self.inside(0, sys.executable, "-c", SEVERAL), env=self.environment(),
                cwd=self.folder / "here", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        asking, answers = self.caller.stdin, self.caller.stdout
        assert asking is not None
        assert answers is not None
        asked = self._words(*words)
        asking.write(f"{json.dumps(asked)}\n")
        asking.flush()
        return subprocess.CompletedProcess(asked, *json.loads(answers.readline()))

    def serve(self, *words: str | Path, peer: bool = True, **variables: str) -> Serving:
        """Start ``sparkwright serve --json``, on the first machine alone without *peer*."""
        out = self.folder / f"serve-{time.monotonic_ns()}.jsonl"
        program = [sys.executable, "-m", "sparkwright"]
        command = self.inside(0, *program, *self._words("--json", *words, peer=peer))
        with out.open("w") as stream:
            child = subprocess.Popen(
                command, env=self.environment(**variables), cwd=self.folder / "here",
                stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        return Serving(child, out, patience_s=90.0)

    def _words(self, *words: str | Path, peer: bool = True) -> list[str]:
        own = ["--python", str(self.python), "--no-warm-up", "--offline", "--force"]
        own += ["--peer", NAME] if peer else []
        port = [] if "--port" in words else ["--port", "0"]
        recipe = [] if any(str(one).endswith(".toml") for one in words) else [str(self.recipe)]
        return ["serve", *recipe, *own, *port, *map(str, words)]

    def environment(self, **variables: str) -> dict[str, str]:
        here = self.folder / "here"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "VLLM_"))}
        return {
            **kept, "HOME": str(here), "HF_HOME": str(here / "hf"), "SPARKWRIGHT_HOME": str(here / "store"),
            "PATH": f"{self.folder}/ssh/bin:{os.environ['PATH']}", **variables,
        }  # fmt: skip


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Yield two machines in a new folder; skip the test where namespaces or sshd cannot be had."""
    if os.getuid() != 0:
        pytest.skip("network namespaces are made by root alone")
    if SSHD is None or not all(map(shutil.which, ("ssh", "ip"))):
        pytest.skip("no OpenSSH server and client, or no iproute2, are installed here")
    names = (f"sw{os.getpid()}a", f"sw{os.getpid()}b")
    hosts = _made(folder, names)
    try:
        try:
            _link(names)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces can be made here: {error.stderr.decode().strip()}")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        hosts.start_sshd()
        probe = hosts.inside(0, "ssh", NAME, "true")
        wait_until(
            lambda: subprocess.run(probe, env=hosts.environment(), timeout=30, check=False).returncode == 0
        )
        yield hosts
    finally:
        for name in names:
            told = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, timeout=30, check=False
            )
            for pid in map(int, told.stdout.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30, check=False)
        if hosts.sshd is not None:
            hosts.sshd.wait()
        if hosts.caller is not None:
            hosts.caller.communicate()


def _link(names: Sequence[str]) -> None:
    for name in names:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    for number, interface in enumerate((FAST, SLOW), start=1):
        ends = ["name", interface, "netns", names[0], "type", "veth"]
        _run("ip", "link", "add", *ends, "peer", "name", interface, "netns", names[1])
        for host, name in enumerate(names, start=1):
            _run("ip", "-n", name, "address", "add", f"10.77.{number}.{host}/24", "dev", interface)
            _run("ip", "-n", name, "link", "set", interface, "up")


def _made(folder: Path, names: tuple[str, str]) -> TwoHosts:
    ssh = folder / "ssh"
    for name in ("here", "there", "ssh/there"):
        (folder / name).mkdir(parents=True)
    for name in ("host", "client"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ssh / name)
    server = (SSHD_CONFIG + _SERVER).format(folder=ssh, there=folder / "there")
    (ssh / "sshd").write_text(server)
    (ssh / "known").write_text(f"10.77.2.2 {(ssh / 'host.pub').read_text()}")
    (ssh / "config").write_text((_CLIENT + SSH_CONFIG).format(folder=ssh, name=NAME))
    wrap_ssh(ssh, ssh / "config")
    _write_model(folder / "here" / "hf" / "hub")
    hosts = TwoHosts(folder, names, _write_environment(folder / "environment"), folder / "tiny-2x.toml")
    write_recipe(hosts)
    for host in (0, 1):
        hosts.sysfs(host, {FAST: 200_000, SLOW: 10_000})
    return hosts


def write_recipe(hosts: TwoHosts, *, nodes: int = 2) -> None:
    path = f"{SOURCE_ROOT}:{sysconfig.get_path('purelib')}"
    text = _RECIPE.format(model=MODEL, nodes=nodes, path=path)
    hosts.recipe.write_text(text)


def _write_model(hub: Path) -> None:
    """Write a model as huggingface_hub stores it."""
    repository = hub / "models--org--tiny"
    tensors = json.dumps({"w": {"dtype": "U8", "shape": [3 << 20], "data_offsets": [0, 3 << 20]}}).encode()
    weights = len(tensors).to_bytes(8, "little") + tensors + os.urandom(3 << 20)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 4096}
    contents = {"model.safetensors": weights, "config.json": json.dumps(config).encode()}
    contents |= dict.fromkeys(("tokenizer.json", "tokenizer_config.json"), b"{}")
    contents["chat_template.jinja"] = b"{{ messages }}"
    snapshot = repository / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, (name, data) in enumerate(contents.items()):
        blob = repository / "blobs" / (str(number) * 64)
        blob.write_bytes(data)
        (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c" * 40)


def _write_environment(folder: Path) -> Path:
    """Make an environment with the small vLLM, and a script."""
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for name in ("vllm", "vllm/entrypoints", "vllm/entrypoints/cli"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").touch()
    (packages / "vllm" / "entrypoints" / "cli" / "main.py").write_text(VLLM)
    (packages / "weights.bin").write_bytes(os.urandom(1 << 20))
    info = packages / "vllm-0.33.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    write_program(folder / "bin" / "ninja", "import sys\nprint(sys.prefix)", f"{folder}/bin/python")
    return folder / "bin" / "python"


def worker_environment(log: Path) -> dict[str, Any]:
    """Return what the worker wrote of its variables."""
    line = next(one for one in log.read_text().splitlines() if one.startswith("WORKER "))
    found: dict[str, Any] = json.loads(line.removeprefix("WORKER "))
    return found
