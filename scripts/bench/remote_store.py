"""Extensions of the pinned release: compiled cold, found in the local store, and found on a server.

Each arm is a process with a store of its own; the server is nginx with WebDAV's PUT. The stores begin
with the toolchain, upstream's sources and the merge, as hard links into the user's store. They lack
objects, extensions and CMake's configuration. ccache, where it is installed, compiles the same units,
which are configured then: cold, with its own folder, and with an empty folder and the warm server.

    python scripts/bench/remote_store.py [--until spinloop] [--platform aarch64] [--times 3]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkwright.base.events import Event, subscribe
from sparkwright.git import open_repository
from sparkwright.native.build import configured
from sparkwright.native.toolchain import configure_environment
from sparkwright.native.workspace import open_workspace
from sparkwright.pipeline import BuildState, Job, apply, make_job, open_checkout
from sparkwright.pipeline.kernels import builder_of, inputs_of
from sparkwright.pipeline.options import BuildOptions
from sparkwright.store import default_home, open_store
from sparkwright.store.remote import RemoteSettings, RemoteTier

_LINKED = ("git", "toolchains", "files")
_MADE_HERE = ("unit", "extension", "configuration", "unit-cost", "deflated", "audit", "proof")
NGINX = """\
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/bodies; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      root {folder}/objects; dav_methods PUT; create_full_put_path on; client_max_body_size 2g;
    }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[str]:
    """Give the address of an empty server."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if program is None:
        raise SystemExit("nginx is not installed")
    (folder / "objects").mkdir(parents=True)
    (folder / "objects").chmod(0o777)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    process = subprocess.Popen(command)
    try:
        time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def new_store(folder: Path) -> None:
    """Make a store in *folder* that has what is fetched, and nothing of what is compiled."""
    home = default_home()
    folder.mkdir()
    for name in _LINKED:
        shutil.copytree(home / name, folder / name, copy_function=os.link, symlinks=True)
    for kind in (home / "records").iterdir():
        if kind.name not in _MADE_HERE:
            shutil.copytree(kind, folder / "records" / kind.name)


def make(arguments: argparse.Namespace) -> None:
    """Build in this process, and print what it took as JSON."""
    settings = RemoteSettings(url=arguments.url, key_file=Path(arguments.key)) if arguments.url else None
    remote = RemoteTier(settings) if settings else None
    store = open_store(Path(arguments.store), remote)
    seen: list[Event] = []
    with contextlib.closing(open_repository(store.git)) as repository, subscribe(seen.append):
        options = BuildOptions(kernels="native", platform=arguments.platform)
        job = make_job(open_checkout(Path(__file__).parent), store, repository, options)
        name = f"compile {arguments.until}"
        # Up to the toolchain everything is there for all; the clock runs for what is compiled or found.
        state = apply(job, until=lambda step: step.name == "toolchain")
        began, cpu = time.perf_counter(), _cpu()
        if arguments.ccache:
            units = _with_ccache(job, state, arguments)
            extensions: dict[str, str] = {}
        else:
            state = apply(job, until=lambda step: step.name == name)
            units = sum(event.kind == "compile.started" for event in seen)
            extensions = {key: one.sha256 for key, one in state.extensions.items()}
        waited = time.perf_counter()
        report = remote.report.to_json() if remote else {}
        print(
            json.dumps(
                {
                    "wall": waited - began,
                    "flush": time.perf_counter() - waited,
                    "cpu": _cpu() - cpu,
                    "units": units,
                    "extensions": extensions,
                    "remote": report,
                }
            )
        )


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _with_ccache(job: Job, state: BuildState, arguments: argparse.Namespace) -> int:
    """Compile the same units with ccache, one after the other; return how many it had to compile."""
    builder, inputs = builder_of(job), inputs_of(job, state)
    known = configured(builder, inputs)
    every = list(builder.native.extensions)
    wanted = every[: every.index(arguments.until) + 1]
    units = [unit for name in wanted for unit in known.configuration.units_of(name)]
    with open_workspace(job.store, job.repository, known.tree, inputs.toolchain) as work:
        env = configure_environment(inputs.toolchain, inputs.target, work.root, job.spec.lock)
        env |= {
            "CCACHE_DIR": arguments.ccache,
            "CCACHE_BASEDIR": str(work.root),
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_SLOPPINESS": "time_macros,include_file_mtime,include_file_ctime",
            "CCACHE_STATSLOG": str(work.root / "stats"),
        }
        if arguments.ccache_remote:
            env["CCACHE_REMOTE_STORAGE"] = f"{arguments.ccache_remote}|layout=bazel"
        for unit in units:
            (work.root / unit.output).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["ccache", *work.expand(unit.argv)], cwd=work.build, env=env, check=True)
        stats = (work.root / "stats").read_text()
    return len(units) - stats.count("direct_cache_hit") - stats.count("preprocessed_cache_hit")


def arm(name: str, *words: str) -> dict[str, Any]:
    """Run one arm in a process of its own, and print its figures."""
    command = [sys.executable, str(Path(__file__).absolute()), "--arm", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    remote = found["remote"]
    told = f", {remote['hits']} hits, {remote['bytes-read'] / 1e6:.2f} MB read" if remote else ""
    if remote and remote["written"]:
        told += f", {remote['bytes-written'] / 1e6:.2f} MB written, {found['flush']:.2f} s of that at the end"
    print(
        f"{name:34} {found['wall']:7.2f} s, CPU {found['cpu']:6.2f} s, {found['units']} units compiled{told}",
        flush=True,
    )
    return found


def main() -> None:
    """Run the arms one after the other, all of them as often as was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--until", default="spinloop", help="the last extension of the lock to compile")
    parser.add_argument("--platform", default="aarch64")
    parser.add_argument("--times", type=int, default=1)
    for hidden in ("--store", "--url", "--key", "--ccache", "--ccache-remote"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--arm", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        make(arguments)
        return
    for _ in range(arguments.times):
        # On the disk of the user's store, for the hard links.
        with tempfile.TemporaryDirectory(dir=default_home().parent) as scratch:
            _compare(Path(scratch), ["--until", arguments.until, "--platform", arguments.platform])


def _compare(folder: Path, common: list[str]) -> None:
    for name in ("alone", "first", "second"):
        new_store(folder / name)
    key = ["--key", str(folder / "key.pem")]
    with nginx(folder / "server") as url:
        alone = arm("cold, no server", *common, "--store", str(folder / "alone"))
        first = arm("cold, written behind", *common, *key, "--store", str(folder / "first"), "--url", url)
        arm("found in the local store", *common, "--store", str(folder / "alone"))
        second = arm(
            "empty store, warm server", *common, *key, "--store", str(folder / "second"), "--url", url
        )
        if not alone["extensions"] == first["extensions"] == second["extensions"] or second["units"]:
            raise SystemExit("the arms differ")
        print("the same extensions from all:", alone["extensions"])
        if shutil.which("ccache") is None:
            print("ccache is not installed")
            return
        for kind in ("unit", "extension"):
            shutil.rmtree(folder / "alone" / "records" / kind)
        arm("cold, but configured", *common, "--store", str(folder / "alone"))
        warm = [*common, "--store", str(folder / "alone"), "--ccache-remote", f"{url}/ccache"]
        arm("ccache, cold, written", *warm, "--ccache", str(folder / "ccache-1"))
        arm("ccache, found in its folder", *warm, "--ccache", str(folder / "ccache-1"))
        arm("ccache, empty folder, warm server", *warm, "--ccache", str(folder / "ccache-2"))


if __name__ == "__main__":
    main()
