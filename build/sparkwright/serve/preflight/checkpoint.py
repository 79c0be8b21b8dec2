"""A checkpoint on this machine: configuration, tokenizer and headers of weights, as plain facts.

A model is a folder, or a Hugging Face id whose snapshot is in the cache of huggingface_hub. Nothing is
downloaded or imported, and of safetensors files the header alone is read: eight bytes of length (little
endian) and a JSON object of that length, so that a folder of hundreds of gigabytes takes milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engine.models import cache_folder

INDEX = "model.safetensors.index.json"
TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json", "spiece.model",
    "tokenizer_config.json",
)  # fmt: skip
# Of these one is enough; tokenizer_config.json alone names a class without a vocabulary.
_VOCABULARIES = TOKENIZERS[:-1]
_LARGEST_JSON = 512 << 20
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth")
# The format's own limit (safetensors, MAX_HEADER_SIZE): a longer header is refused by every reader.
_LONGEST_HEADER = 100_000_000
LENGTH = 8
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER = 1024
NONE = "none"


@dataclass(frozen=True)
class Tensor:
    """A tensor as the header describes it.

    Attributes:
        dtype: the format's name of its type, such as ``BF16``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def count(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shard:
    """One file of weights.

    Attributes:
        expected: the bytes that its header promises; -1 where that could not be read.
        problem: the reason for which it cannot be read; empty if it can.
        pointer: true if it is a Git LFS pointer and not the file.
    """

    name: str
    size: int
    expected: int = -1
    tensors: tuple[Tensor, ...] = ()
    problem: str = ""
    pointer: bool = False


def is_pointer(path: Path) -> bool:
    """Tell if the file at *path* is a Git LFS pointer."""
    try:
        if path.stat().st_size > _LARGEST_POINTER:
            return False
        with path.open("rb") as stream:
            return stream.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def read_shard(path: Path) -> Shard:
    """Return what the header of the safetensors file at *path* says; a damaged one has a `Shard.problem`."""
    try:
        size = path.stat().st_size
        if is_pointer(path):
            return Shard(path.name, size, pointer=True)
        with path.open("rb") as stream:
            return parse_shard(path.name, size, stream.read)
    except OSError as error:
        return Shard(path.name, -1, problem=f"it cannot be read: {error!r}")


def parse_shard(name: str, size: int, read: Callable[[int], bytes]) -> Shard:
    """Return what the header of a file says that is *read* on and on; a damaged one has a `Shard.problem`."""
    try:
        length = int.from_bytes(read(LENGTH), "little")
        if size < LENGTH or length > min(_LONGEST_HEADER, size):
            return Shard(name, size, problem=f"it has {size} bytes, and says that {length} are its header")
        header = json.loads(read(length))
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        tensors = tuple(_tensor(key, entry) for key, entry in entries.items())
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        return Shard(name, -1, problem=f"its header cannot be read: {error!r}")
    return Shard(name, size, LENGTH + length + end, tensors)


def _tensor(name: str, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    return Tensor(
        name, str(entry["dtype"]), tuple(int(size) for size in entry["shape"]), int(end) - int(begin)
    )


@dataclass(frozen=True)
class Checkpoint:
    """The facts about one checkpoint.

    Attributes:
        folder: its folder; links are not resolved.
        index: file of each tensor by ``model.safetensors.index.json``; empty without one.
        index_bytes: bytes of all tensors by that; -1 where it does not say.
        pointers: names of small files that are Git LFS pointers.
        mistral: true if it has Mistral's own configuration, ``params.json``, which is not read here.
    """

    name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    modelopt: Mapping[str, Any] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    index: Mapping[str, str] = field(default_factory=dict)
    index_bytes: int = -1
    tokenizer: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()
    gguf: tuple[str, ...] = ()
    other_weights: tuple[str, ...] = ()
    mistral: bool = False
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that a loader reads: those of the index's files, or of all."""
        named = set(self.index.values())
        for shard in self.shards:
            if not named or shard.name in named:
                yield from shard.tensors

    @property
    def bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def text(self) -> Mapping[str, Any]:
        """The configuration of the language model, which multimodal models nest."""
        for name in ("text_config", "llm_config", "language_config", "thinker_config"):
            inner = self.config.get(name)
            if isinstance(inner, dict):
                deeper = inner.get("text_config")
                return deeper if name == "thinker_config" and isinstance(deeper, dict) else inner
        return self.config

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that the configuration names."""
        listed = self.config.get("architectures")
        return tuple(map(str, listed)) if isinstance(listed, list) else ()

    @property
    def has_vocabulary(self) -> bool:
        """Tell if a tokenizer can be made of its files."""
        return any(name in _VOCABULARIES for name in self.tokenizer)


def find_folder(name: str, environment: Mapping[str, str], revision: str = "") -> Path | None:
    """Return the folder of the model *name*, or `None` where it is not on this machine."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name.count("/") > 1:
        return None
    repository = cache_folder(environment) / f"models--{name.replace('/', '--')}"
    revision = revision or "main"
    with contextlib.suppress(OSError):
        revision = (repository / "refs" / revision).read_text(encoding="utf-8").strip()
    snapshot = repository / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def read_checkpoint(name: str, folder: Path) -> Checkpoint:
    """Return the facts in *folder*; what cannot be read is listed and does not raise."""
    unreadable: dict[str, str] = {}
    present = sorted(path for path in folder.iterdir() if path.is_file())
    names = [path.name for path in present]

    def load(file: str) -> dict[str, Any]:
        return _load(folder / file, unreadable) if file in names else {}

    load("generation_config.json")  # transformers reads it, and refuses what cannot be read
    index = load(INDEX)
    weights = index.get("weight_map")
    metadata = index.get("metadata")
    total = metadata.get("total_size", -1) if isinstance(metadata, dict) else -1
    return Checkpoint(
        name=name,
        folder=folder,
        config=load("config.json"),
        modelopt=load("hf_quant_config.json"),
        shards=tuple(read_shard(path) for path in present if path.suffix == ".safetensors"),
        index={str(key): str(value) for key, value in weights.items()} if isinstance(weights, dict) else {},
        index_bytes=int(total) if isinstance(total, (int, float)) else -1,
        tokenizer=tuple(file for file in TOKENIZERS if file in names),
        pointers=tuple(path.name for path in present if path.suffix != ".safetensors" and is_pointer(path)),
        gguf=tuple(file for file in names if file.endswith(".gguf")),
        other_weights=tuple(path.name for glob in _OTHER_WEIGHTS for path in sorted(folder.glob(glob))),
        mistral="params.json" in names,
        unreadable=unreadable,
    )


def _load(path: Path, unreadable: dict[str, str]) -> dict[str, Any]:
    if is_pointer(path):
        return {}
    why = "it is no JSON object"
    try:
        if (size := path.stat().st_size) <= _LARGEST_JSON:
            found = json.loads(path.read_bytes())
            if isinstance(found, dict):
                return found
        else:
            why = f"it has {size} bytes"
    except (OSError, ValueError, RecursionError) as error:
        why = str(error)
    unreadable[path.name] = why
    return {}


@dataclass(frozen=True)
class Quantization:
    """The quantization of a checkpoint.

    Attributes:
        method: in vLLM's words, such as ``modelopt`` or ``compressed-tensors``; ``none`` without one.
        algorithm: the producer's name of the format, such as ``NVFP4``; empty where it names none.
        source: the file that says so.
    """

    method: str = NONE
    algorithm: str = ""
    source: str = ""


def find_quantization(checkpoint: Checkpoint) -> Quantization:
    """Return the quantization that the configuration of *checkpoint* states."""
    for config in (checkpoint.config, checkpoint.text):
        stated = config.get("quantization_config") or config.get("compression_config")
        if isinstance(stated, dict) and stated.get("quant_method"):
            algorithm = str(stated.get("quant_algo") or stated.get("format") or "")
            return Quantization(str(stated["quant_method"]).lower(), algorithm, "config.json")
    inner = checkpoint.modelopt.get("quantization")
    if isinstance(inner, dict) and inner.get("quant_algo"):
        return Quantization("modelopt", str(inner["quant_algo"]), "hf_quant_config.json")
    return Quantization()
