"""Wheels of ``vllm`` whose server is the simulator."""

import sysconfig
from pathlib import Path

from wheelkit import plain_wheel

# A vLLM whose server is the simulator; releases differ in the faults that it gets.
SERVER = """
import os, sys
FAULTS = {faults!r}
simulator = [os.environ["SIMULATOR"], "-m", "sparkwright.verify.simulator.main", "--boot-seconds", "0"]
os.execv(simulator[0], [*simulator, "--model", "vllm-{version}", "--no-engine", *FAULTS, *sys.argv[1:]])
"""


def vllm_wheel(folder: Path, version: str, *faults: str, tag: str = "py3-none-any") -> Path:
    """Build a wheel of ``vllm`` that starts a simulator with *faults*."""
    words = [part for fault in faults for part in ("--fault", fault)]
    server = SERVER.format(faults=words, version=version)
    return _pack(folder, version, tag, {"vllm/server.py": server.encode()})


def _pack(folder: Path, version: str, tag: str, modules: dict[str, bytes]) -> Path:
    return plain_wheel(folder, "vllm", version, tag=tag, modules={"vllm/__init__.py": b"", **modules})


# ``vllm serve`` of such a wheel. The simulator runs in its process, so that no key is in arguments.
SERVE = """
import os, site, sys
for folder in {paths!r}:
    site.addsitedir(folder)
from sparkwright.verify.simulator.main import main

words = sys.argv[1:]

def option(name):
    return words[words.index(name) + 1]


arguments = ["--host", option("--host"), "--port", option("--port"), "--model", option("--served-model-name")]
arguments += ["--speed", "600", "--boot-seconds", "60", "--k", "0", "--max-model-len", "4096"]
arguments += ["--api-key", os.environ.get("VLLM_API_KEY", "")]
sys.exit(main([*arguments, *{faults!r}]))
"""


def served_wheel(
    folder: Path, version: str, *faults: str, tag: str = "py3-none-any", packages: str = ""
) -> Path:
    """Build a wheel of ``vllm`` whose ``vllm serve`` is the simulator, with *faults*.

    The simulator is that of the packages in the folder *packages*, by default this environment's.
    """
    words = [part for fault in faults for part in ("--fault", fault)]
    paths = [packages or sysconfig.get_path("purelib")]
    serve = SERVE.format(paths=paths, faults=words)
    return _pack(folder, version, tag, {"vllm/entrypoints/cli/main.py": serve.encode()})
