"""The recipe of a rehearsal, with the path of the model in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import sha256_bytes
from sparkwright.engine.server.environment import vllm_command
from sparkwright.recipes import load_recipe, serve_arguments, shipped_path
from sparkwright.store import Store, write_atomically

NAME = "rehearsal-smollm2"
"""The name of the recipe that rehearsals serve."""
_MODEL = "rehearsal:smollm2"
_SPECULATIVE = """
[speculative]
method = "ngram"
num_speculative_tokens = 3
prompt_lookup_max = 4
prompt_lookup_min = 2
"""
# The n-gram drafter hands numba's number of threads on to torch, whose two threads then wait for each other.
_THREADS = 'OMP_NUM_THREADS = "1"\n'
_NUMBA = f'{_THREADS}NUMBA_NUM_THREADS = "1"\n'


@dataclass(frozen=True)
class WrittenRecipe:
    """A recipe on the disk.

    Attributes:
        path: the TOML file.
    """

    path: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the server, on top of the caller's."""
        return load_recipe(self.path).environment

    def command(self, python: Path) -> tuple[str, ...]:
        """Return program and arguments of the server, with placeholders for host and port."""
        recipe = load_recipe(self.path)
        arguments = serve_arguments(recipe, host="{host}", port=0)
        port = arguments.index("--port") + 1
        return (*vllm_command(python), *arguments[:port], "{port}", *arguments[port + 1 :])


def write_recipe(store: Store, model: Path, *, speculative: bool = False) -> WrittenRecipe:
    """Write the recipe that serves the folder *model*, with n-gram speculation if *speculative*."""
    text = shipped_path(NAME).read_text(encoding="utf-8").replace(_MODEL, str(model))
    if speculative:
        text = text.replace(_THREADS, _NUMBA, 1) + _SPECULATIVE
    data = text.encode()
    path = store.models / "recipes" / f"{sha256_bytes(data)[:16]}.toml"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    return WrittenRecipe(path)
