"""Items about starts: preflight and dry runs on simulated machines, memory, services, and small wheels."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import platform
import re
import shutil
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safety_net.product import RECIPES, ROOT, call, inputs, plain

_GIB, _KIB = 1 << 30, 1 << 10
_BYTES = {"BF16": 2, "U8": 1, "F8_E4M3": 1, "F32": 4}
DATA = ROOT / "tests" / "safety-net"


# Machines --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """A simulated machine: what programs and files say of it. ``nvidia-smi`` is a script, as are compilers.

    Attributes:
        card: fields of ``nvidia-smi``; empty without a card.
        available: GiB of memory that are.
        cached: GiB of page cache among them.
        swap: GiB in swap.
        disk: free GiB.
        tools: names of programs on it.
        processes: lines of ``nvidia-smi`` about programs on the card.
        total: GiB of memory.
    """

    card: Mapping[str, str] = field(default_factory=dict)
    machine: str = "aarch64"
    available: float = 116.0
    cached: float = 4.0
    swap: float = 0.0
    disk: float = 500.0
    tools: tuple[str, ...] = ("gcc", "g++", "ninja", "nvcc", "ptxas")
    processes: tuple[str, ...] = ()
    total: float = 121.69


def _card(
    name: str, capability: str, driver: str = "580.95.05", mib: int = -1, **fields: str
) -> dict[str, str]:
    memory = {"memory.total": f"{mib} MiB", "memory.free": f"{mib - 1024} MiB"} if mib > 0 else {}
    own = {
        "memory.total": "[N/A]",
        "memory.free": "[N/A]",
        "compute_mode": "Default",
        "persistence_mode": "Enabled",
    }
    return {"name": name, "compute_cap": capability, "driver_version": driver, **own, **memory, **fields}


GB10 = _card("NVIDIA GB10", "12.1")
H200 = Host(_card("NVIDIA H200", "9.0", mib=143_771), "x86_64", 990.0, total=1007.0)
HOSTS = {
    "spark": Host(GB10),
    "busy spark": Host(GB10, available=61.5, cached=30.0, swap=12.0, processes=("4711, python3, 40960 MiB",)),
    "bare spark": Host(
        _card("NVIDIA GB10", "12.1", "550.54.14", persistence_mode="Disabled"), disk=21.0, tools=("gcc",)
    ),
    "h200": H200,
    "small card": Host(_card("NVIDIA GeForce RTX 5090", "12.0", mib=32_607), "x86_64", 120.0, total=125.7),
    "no card": Host(machine="x86_64", available=58.0, total=62.7),
}
_SMI = """\
#!/bin/sh
for word; do case $word in
  --query-gpu=*) query=${word#*=} ;;
  --query-compute-apps=*) while read -r line; do echo "$line"; done < "$0.apps"; exit ;;
esac; done
IFS=,; out=
for name in $query; do
  value='[N/A]'
  while IFS== read -r key text; do [ "$key" = "$name" ] && value=$text; done < "$0.card"
  out="$out, $value"
done
echo "${out#, }"
"""


def simulate(host: Host, folder: Path) -> dict[str, str]:
    """Make this process see *host*: replace what Python asks the machine; return variables for commands."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in host.tools:
        _program(programs / name, '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V13.0.48"\n')
    if host.card:
        _program(programs / "nvidia-smi", _SMI)
        (programs / "nvidia-smi.card").write_text(
            "".join(f"{name}={text}\n" for name, text in host.card.items())
        )
        (programs / "nvidia-smi.apps").write_text("".join(f"{line}\n" for line in host.processes))
    meminfo = {
        "MemTotal": host.total, "MemAvailable": host.available, "MemFree": host.available - host.cached,
        "Cached": host.cached, "SwapTotal": 16.0, "SwapFree": 16.0 - host.swap,
    }  # fmt: skip
    text = "".join(f"{name}: {int(gib * _GIB / _KIB)} kB\n" for name, gib in meminfo.items())
    read, usage = Path.read_text, shutil.disk_usage

    def read_text(path: Path, *given: Any, **named: Any) -> str:
        return text if str(path) == "/proc/meminfo" else read(path, *given, **named)

    Path.read_text = read_text  # type: ignore[assignment,method-assign]
    shutil.disk_usage = lambda path: usage(path)._replace(free=int(host.disk * _GIB))
    platform.machine = lambda: host.machine
    platform.node = lambda: "host"
    return {"PATH": str(programs), "CUDA_HOME": "", "HF_HUB_OFFLINE": "1"}


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


# Checkpoints -----------------------------------------------------------------------------------------------


def write_checkpoint(
    folder: Path, config: dict[str, Any], tensors: dict[str, list[Any]], **files: Any
) -> Path:
    """Write a checkpoint of headers: its file of weights is a hole.

    Args:
        folder: receives it.
        config: ``config.json``.
        tensors: type, shape and number of layers by the name, in which ``{}`` stands for the layer.
        files: content of more JSON files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    header, offset = {}, 0
    for pattern, (kind, shape, layers) in tensors.items():
        for name in dict.fromkeys(pattern.format(layer) for layer in range(layers)):
            end = offset + math.prod(shape) * _BYTES[kind]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
            offset = end
    packed = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(packed).to_bytes(8, "little") + packed)
        stream.truncate(8 + len(packed) + offset)
    for name, value in {"config": config, "tokenizer": {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "chat_template.jinja").write_text("{{ messages }}{{ enable_thinking }}{{ tools }}")
    return folder


def write_models(cache: Path) -> None:
    """Write the models of ``models.json`` as the cache of Hugging Face's hub has them."""
    for name, model in json.loads((DATA / "models.json").read_text()).items():
        place = cache / f"models--{name.replace('/', '--')}"
        write_checkpoint(place / "snapshots" / "0" / "", **model)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("0")


# Starts ----------------------------------------------------------------------------------------------------


def starts(scratch: Path) -> dict[str, Any]:
    """`doctor RECIPE` and `serve --dry-run` as JSON: every recipe, use and series on six simulated machines.

    Left out: folders, keys of environments, and this machine's network interfaces. The store is empty, the
    network off; models are headers with holes.
    """
    write_models(scratch / "hub")
    wheels = {
        wheel.name.split("-")[1][:4]: wheel for wheel in small_wheels(scratch / "dist").glob("vllm-*.whl")
    }
    root = inputs(scratch)
    tasks = [(name, scratch, root, wheels, known_uses()) for name in HOSTS]
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        return dict(zip(HOSTS, pool.map(_on_host, tasks, chunksize=1), strict=True))


def known_uses() -> dict[str, list[str]]:
    """Return the uses of every recipe that ships; of one without any an empty name."""
    recipes = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in RECIPES.glob("*.toml")}
    return {name: [*recipe.get("uses", {})] or [""] for name, recipe in sorted(recipes.items())}


def _on_host(task: tuple[str, Path, Path, dict[str, Path], dict[str, list[str]]]) -> dict[str, Any]:
    name, scratch, root, wheels, uses = task
    found: dict[str, Any] = {}
    variables = {**simulate(HOSTS[name], scratch / name), "HF_HUB_CACHE": str(scratch / "hub")}
    for recipe, series in itertools.product(uses, wheels):
        for use in uses[recipe]:
            words = (recipe, *(["--use", use] if use else []), "--wheel", str(wheels[series]), "--json")
            head = ("--head", "192.0.2.1") if "-2x" in recipe else ()
            checked = call("doctor", *words, folder=root, **variables)
            planned = call("serve", *words, "--dry-run", *head, folder=root, **variables)
            found[f"{recipe} {use or 'single'} {series}"] = {
                "preflight": {"status": checked.status, **plain(_json(checked.out), scratch / name)},
                "serve": {"status": planned.status, **plain(_json(planned.out), scratch / name)},
            }
    return dict(plain(found, scratch))


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(_INTERFACES.sub(r'\1(interfaces)",', _ENVIRONMENT.sub("environments/KEY/", text)))
    except ValueError:
        return {"said": text}
    return value if isinstance(value, dict) else {"value": value}


# An environment's key depends on this Python, and on folders.
_ENVIRONMENT = re.compile(r"environments/[0-9a-f]{16}/")
_INTERFACES = re.compile(r"(Gb/s or more: ).*")


# Memory ----------------------------------------------------------------------------------------------------

# Shapes of Qwen3 0.6B, 1.7B and 8B: hidden and middle sizes, layers, heads, one matrix for both ends.
_SHAPES = {
    "0.6b": (1024, 3072, 28, 16, True),
    "1.7b": (2048, 6144, 28, 16, True),
    "8b": (4096, 12288, 36, 32, False),
}
# GiB of weights, KV cache and CUDA graphs that vLLM reported when it booted on an H200:
# docs/evidence/2026-11-memory-budget-h200.md at `product.START`.
_BOOTS = {
    ("0.6b", "auto", False): (1.12, 68.23, 0.17), ("8b", "auto", True): (15.27, 53.56, None),
    ("0.6b", "fp8", False): (1.12, 68.23, 0.17), ("1.7b", "fp8", False): (3.22, 65.82, 0.19),
    ("8b", "fp8", False): (15.27, 53.12, 0.22), ("0.6b", "auto", True): (1.12, 68.32, None),
    ("0.6b", "fp8", True): (1.12, 68.32, None), ("1.7b", "auto", True): (3.22, 66.02, None),
}  # fmt: skip


def memory(scratch: Path) -> dict[str, Any]:
    """Memory that preflight predicts for the recorded boots of `memory_budget`, and if each lies within."""
    variables, found = simulate(H200, scratch / "host"), {}
    for (shape, cache, eager), (weights, pool, graphs) in _BOOTS.items():
        hidden, middle, layers, heads, tied = _SHAPES[shape]
        sizes: dict[str, list[Any]] = {"model.embed_tokens.weight": ["BF16", [151_936, hidden], 1]}
        inner = {
            "self_attn.q_proj": [heads * 128, hidden], "self_attn.k_proj": [1024, hidden],
            "self_attn.v_proj": [1024, hidden], "self_attn.o_proj": [hidden, heads * 128],
            "mlp.gate_proj": [middle, hidden], "mlp.up_proj": [middle, hidden],
            "mlp.down_proj": [hidden, middle],
        }  # fmt: skip
        sizes |= {f"model.layers.{{}}.{name}.weight": ["BF16", size, layers] for name, size in inner.items()}
        sizes |= {} if tied else {"lm_head.weight": ["BF16", [151_936, hidden], 1]}
        config = {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128,
            "hidden_size": hidden,
            "intermediate_size": middle, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": 8, "max_position_embeddings": 40_960, "tie_word_embeddings": tied,
            "torch_dtype": "bfloat16", "vocab_size": 151_936,
        }  # fmt: skip
        model = write_checkpoint(scratch / shape, config, sizes)
        recipe = scratch / "budget.toml"
        recipe.write_text(
            f'format = 1\nname = "budget"\ntitle = "budget"\nmodel = "{model}"\n[flags]\n'
            f'kv-cache-dtype = "{cache}"\nmax-model-len = 16384\nmax-num-seqs = 64\n'
            f"max-num-batched-tokens = 8192\ngpu-memory-utilization = 0.5\n"
            f"enforce-eager = {str(eager).lower()}\nskip-tokenizer-init = true\n"
        )
        told = call("doctor", recipe, "--json", folder=scratch, **variables).json
        rows = {row["part"]: row for row in told["memory"]}
        seen = {"weights": weights, "KV cache": pool, "CUDA graphs": graphs}
        found[f"{shape} {cache} {'eager' if eager else 'graphs'}"] = plain(
            {"rows": rows, "findings": told["findings"], "seen": seen, "within": _within(rows, seen)}, scratch
        )
    return found


def _within(rows: dict[str, Any], seen: dict[str, float | None]) -> dict[str, bool]:
    """Tell of each figure whether its prediction holds: bounds, or 3 % where there are none."""
    found = {}
    for part, gib in seen.items():
        row = next(
            (one for name, one in rows.items() if name.startswith(part) and "one request" not in name), None
        )
        if row is None or gib is None:
            continue
        low, high = row["low"] or row["gib"] * 0.97, row["high"] or row["gib"] * 1.03
        found[part] = bool(low <= gib <= high)
    return found


# Services --------------------------------------------------------------------------------------------------


def services(scratch: Path) -> dict[str, Any]:
    """Files of a service of every recipe and use, of the system and of a user: unit, variables and others."""
    root, found = inputs(scratch), {}
    variables = simulate(HOSTS["spark"], scratch / "host")
    for recipe, uses in known_uses().items():
        for use, scope in itertools.product(uses, ("--system", "--user")):
            words = ("service", "install", recipe, scope, "--dry-run", "--run-as", "spark")
            told = call(*words, *(["--use", use] if use else []), "--json", folder=root, **variables)
            files = {
                one["path"].lstrip("/"): [oct(int(one["mode"], 8)), one["text"]]
                for one in told.json.get("files", ())
            }
            found[f"{recipe} {use or 'single'} {scope[2:]}"] = plain(
                {"status": told.status, "files": files}, scratch
            )
    return found


# Wheels ----------------------------------------------------------------------------------------------------


def small_wheels(folder: Path) -> Path:
    """Write a wheel of each series with the metadata of a real one and no code; see ``wheels.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in json.loads((DATA / "wheels.json").read_text(encoding="utf-8")).items():
        info = next(member.partition("/")[0] for member in members if ".dist-info/" in member)
        lines = "".join(
            f"{member},sha256={_digest(text)},{len(text.encode())}\n" for member, text in members.items()
        )
        with zipfile.ZipFile(folder / name, "w") as archive:
            for member, text in {**members, f"{info}/RECORD": f"{lines}{info}/RECORD,,\n"}.items():
                archive.writestr(zipfile.ZipInfo(member, (2026, 11, 27, 0, 0, 0)), text)
        os.utime(folder / name, (1_800_000_000, 1_800_000_000))
    return folder


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
