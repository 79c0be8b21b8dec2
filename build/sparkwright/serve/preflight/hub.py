"""Models that a start has to fetch: read on the hub before, and what fetching takes, or forbids it.

Of each file of weights the header alone is asked for, by ranges: some hundred kilobytes of a large model.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sparkwright.base.errors import FetchError
from sparkwright.engine.child.fetch_model import files_of
from sparkwright.engine.models import is_offline, is_repository
from sparkwright.serve.preflight.checkpoint import INDEX, LENGTH, TOKENIZERS, Checkpoint, Shard, parse_shard
from sparkwright.serve.preflight.files import missing_shards
from sparkwright.serve.preflight.finding import Finding, finding
from sparkwright.serve.preflight.machine import GIB, in_gib

if TYPE_CHECKING:
    import requests


_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = (5, 20)  # to connect, and between two bytes
_AT_ONCE = 8
_FIRST = 100_000  # bytes: most headers are shorter, which one request then has
_MOST_JSON = 64 << 20  # an index of a thousand files has a few
_REFUSED = frozenset({401, 403})
_ABSENT, _PART = 404, 206
_ROOMY = 50 * GIB  # what published guides ask for before a model is fetched
_SPARE = 2 * GIB


@dataclass(frozen=True)
class RemoteModel:
    """A model on the hub.

    Attributes:
        checkpoint: its facts, with tensors by the headers of its files; `None` where they could not be read.
        download: bytes of the files that vLLM fetches; -1 where they are not known.
        refused: the reason for which the hub does not hand it out, such as a licence; empty if it does.
        unread: the reason for which it could not be read, such as no network; empty if it was.
    """

    checkpoint: Checkpoint | None = None
    download: int = -1
    files: int = 0
    refused: str = ""
    unread: str = ""


@dataclass
class Hub:
    """The hub that a server with these variables asks, and the models that were read there.

    Attributes:
        environment: variables of the server: ``HF_ENDPOINT``, ``HF_TOKEN``, and where the token's file is.
    """

    environment: Mapping[str, str]
    _read: dict[tuple[str, str], RemoteModel] = field(default_factory=dict)

    def read(self, name: str, revision: str = "") -> RemoteModel:
        """Return the model *name*; what cannot be read is told there and does not raise."""
        key = name, revision or "main"
        if key not in self._read:
            self._read[key] = self._fetched(*key)
        return self._read[key]

    def _fetched(self, name: str, revision: str) -> RemoteModel:
        import requests

        with requests.Session() as session:
            if token := _token(self.environment):
                session.headers["Authorization"] = f"Bearer {token}"  # not sent on to other hosts
            source = _Source(session, self.environment.get("HF_ENDPOINT", "").rstrip("/") or _ENDPOINT, name)
            try:
                return source.read(revision)
            except requests.HTTPError as error:
                status = error.response.status_code
                if status in _REFUSED:
                    return RemoteModel(refused=f"the hub answers {status} to {'a' if token else 'no'} token")
                return RemoteModel(
                    refused="the hub has no such model" if status == _ABSENT else "",
                    unread=f"the hub answers {status}",
                )
            except (
                requests.RequestException,
                FetchError,
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
            ) as error:
                return RemoteModel(unread=f"the hub could not be read: {error}")


@dataclass(frozen=True)
class _Source:
    """One model behind a session."""

    session: requests.Session
    endpoint: str
    name: str

    def read(self, revision: str) -> RemoteModel:
        """Return the model at *revision*.

        Raises:
            requests.RequestException: the hub did not answer, or refused.
            FetchError: an answer is larger than such files are.
            ValueError: an answer is no JSON.
        """
        api = f"{self.endpoint}/api/models/{self.name}/revision/{quote(revision, safe='')}?blobs=true"
        told = json.loads(self._get(api))
        commit = str(told["sha"])
        sizes = {str(one["rfilename"]): int(one.get("size") or 0) for one in told["siblings"]}

        def load(file: str) -> dict[str, Any]:
            found = json.loads(self._get(self._address(commit, file))) if file in sizes else {}
            return found if isinstance(found, dict) else {}

        def shard(file: str) -> Shard:
            address = self._address(commit, file)
            head = self.part(address, 0, _FIRST)
            end = LENGTH + int.from_bytes(head[:LENGTH], "little")
            if len(head) < end <= min(sizes[file], _MOST_JSON):
                head += self.part(address, len(head), end - len(head))
            return parse_shard(file, sizes[file], BytesIO(head).read)

        config, index = load("config.json"), load(INDEX)
        named = {str(tensor): str(file) for tensor, file in index.get("weight_map", {}).items()}
        fetched = files_of([*sizes], "auto", named)
        # Tensors have other names in Mistral's own format, which may be what is fetched.
        read = [file for file in files_of([*sizes], "hf", named) if file.endswith(".safetensors")]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            shards = tuple(pool.map(shard, read))
        checkpoint = Checkpoint(
            name=self.name,
            folder=Path(self.name),
            config=config,
            modelopt=load("hf_quant_config.json"),
            shards=shards,
            index=named,
            tokenizer=tuple(file for file in TOKENIZERS if file in sizes),
            mistral="params.json" in sizes,
        )
        bad = next((f"{one.name}: {one.problem}" for one in shards if one.problem), "")
        size = sum(sizes[file] for file in fetched)
        return RemoteModel(None if bad else checkpoint, size, len(fetched), unread=bad)

    def _address(self, commit: str, file: str) -> str:
        return f"{self.endpoint}/{self.name}/resolve/{commit}/{quote(file)}"

    def _get(self, address: str) -> bytes:
        return self.part(address, 0, _MOST_JSON, whole=True)

    def part(self, address: str, begin: int, count: int, *, whole: bool = False) -> bytes:
        """Return *count* bytes of a file from *begin* on, or fewer where it ends; with *whole*, all of it.

        Raises:
            requests.RequestException: the hub did not answer, or refused.
            FetchError: all of it is more than *count* bytes, or it does not answer ranges.
        """
        ranged = (
            {} if whole else {"Range": f"bytes={begin}-{begin + count - 1}", "Accept-Encoding": "identity"}
        )
        with self.session.get(address, headers=ranged, timeout=_TIMEOUT_S, stream=True) as answer:
            answer.raise_for_status()
            if begin and answer.status_code != _PART:
                raise FetchError(f"{address} could not be read by parts", because="ranges are ignored")
            data = bytearray()
            for piece in answer.iter_content(1 << 16):
                data += piece
                if len(data) >= count:
                    break
        if whole and len(data) >= count:
            raise FetchError(f"{address} is too large", because=f"it has {count} bytes and more")
        return bytes(data[:count])


def _token(environment: Mapping[str, str]) -> str:
    """Return the user's token as huggingface_hub finds it; empty without one."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := environment.get(name, "").strip():
            return token
    home = environment.get("HF_HOME") or str(Path(environment.get("HOME", "~")) / ".cache" / "huggingface")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (
            Path(environment.get("HF_TOKEN_PATH") or f"{home}/token").expanduser().read_text("utf-8").strip()
        )
    return ""


def check_fetched(environment: Mapping[str, str], remote: Mapping[str, RemoteModel]) -> Iterator[Finding]:
    """Yield a finding for each model that a start would have to fetch; *remote* are those by name."""
    for name, told in remote.items():
        if not is_repository(name):
            yield finding("model-missing/path", model=name)
        elif is_offline(environment):
            yield finding("model-missing", model=name)
        elif told.refused:
            yield finding("model-refused", model=name, why=told.refused)
        else:
            size = f"{in_gib(told.download)} in {told.files} files, as the hub lists them"
            known = "; ".join(filter(None, (size if told.files else "", told.unread)))
            yield finding("model-fetched" if known else "model-fetched/unread", model=name, size=known)


def check_disk(
    free: int, folder: Path, models: Mapping[str, Checkpoint | None], remote: Mapping[str, RemoteModel]
) -> Iterator[Finding]:
    """Yield findings about room for weights that have to be fetched."""
    for name, checkpoint in models.items() if free >= 0 else ():
        missing = remote[name].download if name in remote else _missing_bytes(checkpoint)
        facts = {"free": in_gib(free), "folder": folder, "missing": in_gib(missing)}
        if missing > 0 and free < missing + _SPARE:
            yield finding("disk", model=name if name in remote else f"the rest of {name}", **facts)
        elif missing < 0 and free < _ROOMY:
            yield finding("disk/unknown", model=name, **facts)


def _missing_bytes(checkpoint: Checkpoint | None) -> int:
    if checkpoint is None or checkpoint.index_bytes < 0 or not missing_shards(checkpoint):
        return 0
    return max(0, checkpoint.index_bytes - checkpoint.bytes)
