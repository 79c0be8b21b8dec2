"""Findings about a checkpoint's files: what is missing, cut off, not fetched, or leads elsewhere."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from sparkwright.serve.preflight.checkpoint import INDEX, Checkpoint
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.safetensors import Shard

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_SHOWN = 3
_FETCH = "fetch it again: hf download MODEL, or git lfs pull in a clone"


def check_files(checkpoint: Checkpoint, *, weights: bool = True, tokenizer: bool = True) -> Iterator[Finding]:
    """Yield findings about the files of *checkpoint*.

    Args:
        checkpoint: the facts.
        weights: true if weights are read; not for vLLM's dummies.
        tokenizer: true if it needs a tokenizer of its own, which a drafter does not.
    """
    yield from _pointers(checkpoint, weights=weights)
    yield from _links(checkpoint)
    yield from _config(checkpoint)
    if weights:
        yield from _shards(checkpoint)
        yield from _index(checkpoint)
    if tokenizer and not checkpoint.has_vocabulary:
        yield Finding(
            "tokenizer",
            "refuse",
            f"{checkpoint.name} has no tokenizer",
            f"{checkpoint.folder} holds {_listed(checkpoint.tokenizer) or 'no file of one'}",
            "fetch tokenizer.json and tokenizer_config.json, or name another with the flag tokenizer",
        )


def missing_shards(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of files of weights that are named and are not there."""
    present = {shard.name for shard in checkpoint.shards}
    named = set(checkpoint.index.values())
    for name in present if not named else ():
        if match := _NUMBERED.fullmatch(name):
            stem, _, count = match.groups()
            named |= {f"{stem}-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1)}
    return tuple(sorted(named - present))


def _pointers(checkpoint: Checkpoint, *, weights: bool) -> Iterator[Finding]:
    files = [shard.name for shard in checkpoint.shards if shard.pointer and weights]
    if files := [*files, *checkpoint.pointers]:
        yield Finding(
            "lfs-pointer",
            "refuse",
            f"{checkpoint.name} holds Git LFS pointers instead of files",
            f"{_listed(files)} are pointers of some hundred bytes: the clone was made without git-lfs",
            "in that folder: git lfs install && git lfs pull; or hf download MODEL",
        )


def _links(checkpoint: Checkpoint) -> Iterator[Finding]:
    if broken := [link for link in checkpoint.links if link.broken]:
        yield Finding(
            "broken-link",
            "refuse",
            f"{checkpoint.name} has links to files that are not there",
            f"{_listed([f'{link.name} -> {link.target}' for link in broken])}",
            _FETCH,
        )
    if outward := [link for link in checkpoint.links if not link.broken]:
        yield Finding(
            "outward-link",
            "warn",
            f"{checkpoint.name} has links that lead out of its folder",
            f"{_listed([f'{link.name} -> {link.target}' for link in outward])}; a container that mounts the "
            "folder alone does not see these files",
            "mount the folder of their targets too, or copy the files: cp -rL",
        )


def _config(checkpoint: Checkpoint) -> Iterator[Finding]:
    for name, why in checkpoint.unreadable.items():
        yield Finding("unreadable", "refuse", f"{name} of {checkpoint.name} cannot be read", why, _FETCH)
    if checkpoint.gguf and not checkpoint.shards:
        yield Finding(
            "gguf",
            "refuse",
            f"{checkpoint.name} is a GGUF file",
            f"{_listed(checkpoint.gguf)}; these recipes serve safetensors",
            "name the safetensors checkpoint of the same model",
            liftable=True,
        )
    elif not checkpoint.config and checkpoint.mistral:
        yield Finding(
            "mistral-format",
            "note",
            f"{checkpoint.name} has Mistral's own configuration",
            "params.json is not read here, so that memory and quantization are not judged",
        )
    elif not checkpoint.config and not {"config.json"} & {*checkpoint.unreadable, *checkpoint.pointers}:
        yield Finding(
            "no-config",
            "refuse",
            f"{checkpoint.name} has no config.json",
            f"{checkpoint.folder} holds none",
            "name the folder that holds config.json, or fetch the model again",
        )


def _shards(checkpoint: Checkpoint) -> Iterator[Finding]:
    for shard in checkpoint.shards:
        if shard.problem:
            yield Finding(
                "shard-damaged",
                "refuse",
                f"{shard.name} of {checkpoint.name} is damaged",
                shard.problem,
                _FETCH,
            )
        elif not shard.pointer and shard.size != shard.expected:
            yield _cut(checkpoint, shard)
    if missing := missing_shards(checkpoint):
        yield Finding(
            "shard-missing",
            "refuse",
            f"{len(missing)} file{'s' * (len(missing) > 1)} of weights of {checkpoint.name} "
            f"{'are' if len(missing) > 1 else 'is'} missing",
            _listed(missing),
            "fetch the rest: hf download MODEL continues where it stopped",
        )
    if not (checkpoint.shards or checkpoint.gguf or checkpoint.other_weights or checkpoint.index):
        yield Finding(
            "no-weights",
            "refuse",
            f"{checkpoint.name} has no weights",
            f"{checkpoint.folder} holds no safetensors files",
            "fetch the model again: hf download MODEL",
        )


def _cut(checkpoint: Checkpoint, shard: Shard) -> Finding:
    short = shard.size < shard.expected
    return Finding(
        "shard-size",
        "refuse",
        f"{shard.name} of {checkpoint.name} is {'cut off' if short else 'longer than its header says'}",
        f"its header describes {shard.expected:,} bytes, and it has {shard.size:,}",
        _FETCH,
    )


def _index(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Compare the index with the headers of the files that are there and whole."""
    readable = {shard.name: shard for shard in checkpoint.shards if not (shard.problem or shard.pointer)}
    held = {name: {tensor.name for tensor in shard.tensors} for name, shard in readable.items()}
    absent = [
        tensor for tensor, name in checkpoint.index.items() if name in held and tensor not in held[name]
    ]
    if absent:
        yield Finding(
            "index",
            "refuse",
            f"{INDEX} of {checkpoint.name} names tensors that are not there",
            f"{len(absent)} of {len(checkpoint.index)}: {_listed(absent)}",
            "fetch index and weights of one revision: they belong to different ones",
        )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
