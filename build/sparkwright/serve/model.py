"""The data of a served model: the installed vLLM with its recipe, and the user's choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.engine.server import BOOT_S
from sparkwright.recipes import Recipe
from sparkwright.serve.warmup import LIMIT_S

PORT = 8000
"""The port of `vllm serve`."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1"}  # noqa: S104 - replaced, not bound


@dataclass(frozen=True)
class Installation:
    """An installed vLLM and the recipe that it serves, with every path in it.

    Attributes:
        identity: digest of the wheel, or of the installed tree.
        recipe: the recipe, with its use and settings applied.
        described: the wheel or tree in words.
        variables: variables of the server that follow from what is installed, under the recipe's.
    """

    python: Path
    identity: str
    recipe: Recipe
    described: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ServeOptions:
    """The user's choices of a server.

    Attributes:
        host: address to listen at.
        port: port to listen at; 0 chooses a free one.
        api_key: key that clients must send; empty for none.
        key_file: the file that it is in.
        warm_up: send a warm-up before the server is announced.
        warm_up_s: seconds after which no further round of it begins.
        offline: fetch nothing.
        interval_s: seconds between two states.
        compiled_s: seconds between two searches for what was compiled while serving.
        boot_s: limit of the boot, in seconds.
        environment: variables on top of the recipe's.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    api_key: str = field(default="", repr=False)
    key_file: Path | None = None
    warm_up: bool = True
    warm_up_s: float = LIMIT_S
    offline: bool = False
    interval_s: float = 10.0
    compiled_s: float = 30.0
    boot_s: float = BOOT_S
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def reachable_host(self) -> str:
        """Return the address by which this machine reaches the server."""
        return _EVERYWHERE.get(self.host, self.host)
