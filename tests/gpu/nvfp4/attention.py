"""The backend's attention over an NVFP4 cache, an FP8 one and a 16-bit one, against float64.

Keys and values go through the backend's own cache update into a cache whose every byte was poison before,
in chunks and in blocks drawn at random; then its `forward` runs with metadata of its own builder. Two errors
are taken for each cache: against attention over what the cache *stores* (by `coder` for NVFP4), which is the
reader's error, and over the *original* keys and values, which is also the format's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from nvfp4 import coder
from nvfp4.record import Recorder
from nvfp4.reference import expected, gather
from nvfp4.rig import PLAIN, Batch, Features, Layer, Shape, prepare, slots_of, table
from nvfp4.statistics import OUTLIERS, Source

__all__ = ["cases", "run"]

SPARE = 5  # blocks that belong to nobody
PADDING = 3  # rows after the batch, as for a captured graph
# The reader's error may be so much more than that over a 16-bit cache, and at most this much in all; both
# relative to the root mean square of the output.
TIMES, MOST = 2.5, 0.02


@dataclass(frozen=True)
class Case:
    """A layer and the step that it is asked for."""

    name: str
    shape: Shape
    batch: Batch
    features: Features = PLAIN
    dtype: torch.dtype = torch.bfloat16
    scales: tuple[float, float] = (1.0, 1.0)
    outliers: int = OUTLIERS


def batches(*, full: bool) -> dict[str, Batch]:
    """Steps: decodes, few enough for segments (3-D) and too many (2-D), prefill, chunks, drafts."""
    if not full:
        return {
            "decode 3-D": Batch((30, 0, 37), (1, 1, 1)),
            "prefill": Batch((0, 0), (19, 3)),
            "chunked": Batch((21, 17, 5), (9, 1, 1)),
            "drafts": Batch((23, 9), (4, 4)),
        }
    return {
        "decode 3-D": Batch((4095, 1, 0, 2500, 15, 16, 31, 777), (1,) * 8),
        "decode 2-D": Batch(tuple(61 * i % 1200 for i in range(160)), (1,) * 160),
        "prefill": Batch((0, 0, 0, 0), (900, 1, 33, 257)),
        "chunked": Batch((2048, 1000, 16, 3000, 5), (512, 129, 1, 1, 1)),
        "drafts": Batch((2047, 64, 700, 15), (16, 16, 4, 4)),
    }


def cases(device: str) -> list[Case]:
    """Return shapes and steps, so that each pair of properties meets somewhere."""
    full = device != "cpu"
    steps = batches(full=full)
    q, kv = (16, 4) if full else (4, 2)
    dtype = torch.bfloat16 if full else torch.float16
    found = []
    for index, head in enumerate((64, 96, 128, 256, 512) if full else (64, 96)):
        for turn, name in enumerate(steps):
            layout, block = ("NHD", "HND")[(index + turn) % 2], (16, 32)[(index + turn // 2) % 2]
            found.append(Case(name, Shape(q, kv, head, block, layout), steps[name], dtype=dtype))
    features = {
        "window": Features(window=100 if full else 11),
        "softcap": Features(softcap=20.0),
        "sinks": Features(sinks=True),
        "alibi": Features(alibi=True),
        # At least as long as a request's new tokens, as a drafter's windows are: see `narrow`.
        "window, not causal": Features(window=600 if full else 11, causal=False),
        "all of them": Features(window=200 if full else 15, softcap=20.0, sinks=True),
    }
    for index, (name, feature) in enumerate(features.items()):
        for turn, step in enumerate(("decode 3-D", "chunked")):
            layout = ("NHD", "HND")[(index + turn) % 2]
            shape = Shape(q, kv, 128 if full and turn else 64, 16, layout)
            found.append(Case(f"{step}, {name}", shape, steps[step], feature, dtype))
    causeless = Features(causal=False)
    found.append(
        Case("drafts, not causal", Shape(q, kv, 128 if full else 64), steps["drafts"], causeless, dtype)
    )
    groups = [(8, 8), (28, 4), (64, 2)] if full else [(2, 2), (3, 1)]
    for heads, kv_heads in groups:
        for step in ("decode 3-D", "chunked") if full else ("chunked",):
            shape = Shape(heads, kv_heads, 128 if full else 64)
            found.append(Case(f"{step}, {heads} on {kv_heads} heads", shape, steps[step], dtype=dtype))
    for step, block, layout in (("decode 3-D", 48, "NHD"), ("chunked", 112, "HND")):
        shape = Shape(q, kv, 128 if full else 64, block, layout, padding=640)
        found.append(Case(f"{step}, padded pages", shape, steps[step], dtype=dtype))
    odd = (0.0371, 0.0059)
    base = replace(found[0], shape=Shape(q, kv, 128 if full else 64), scales=odd)
    found += [
        replace(base, name=f"{step}, odd scales", batch=steps[step]) for step in ("decode 3-D", "chunked")
    ]
    found.append(replace(base, name="decode 3-D, no outliers", scales=(1.0, 1.0), outliers=0))
    found.append(replace(base, name="decode 3-D, fp16", dtype=torch.float16, scales=(1.0, 1.0)))
    for head in (64, 128, 256) if full else ():
        single = replace(base, shape=Shape(q, kv, head), dtype=torch.float32, scales=(1.0, 1.0))
        found += [
            replace(single, name=f"{step}, fp32", batch=steps[step]) for step in ("decode 3-D", "chunked")
        ]
    return found


@dataclass(frozen=True)
class Error:
    """A difference, relative to the root mean square of what is wanted."""

    mean: float
    largest: float

    @staticmethod
    def of(found: torch.Tensor, wanted: torch.Tensor) -> Error:
        """Of *found* against *wanted*; not a number where either has one."""
        size = wanted.double().square().mean().sqrt()
        difference = found.double() - wanted.double()
        return Error(float(difference.square().mean().sqrt() / size), float(difference.abs().max() / size))


@dataclass
class Scene:
    """Queries, keys and values of one case: the same for all caches."""

    case: Case
    device: torch.device
    seed: int

    def __post_init__(self) -> None:
        """Draw them."""
        case = self.case
        source = Source(case.shape, self.device, case.dtype, self.seed, case.outliers)
        lengths = case.batch.lengths
        places = [torch.arange(length, device=self.device) for length in lengths]
        new = [place[context:] for place, context in zip(places, case.batch.contexts, strict=True)]
        self.keys = [source.keys(place) for place in places]
        self.values = [source.values(place) for place in places]
        self.query = source.queries(torch.cat(new))
        self.blocks = case.batch.blocks(case.shape.block) + SPARE
        shuffled = torch.randperm(self.blocks, generator=torch.Generator().manual_seed(self.seed))
        self.table = table(case.batch, case.shape.block, shuffled[: self.blocks - SPARE], self.device)

    def store(self, layer: Layer) -> None:
        """Write keys and values, contexts first and the step's own tokens in one more call."""
        contexts = self.case.batch.contexts
        for part in (0, 1):
            keys, values, slots = [], [], []
            for row, key, value, context in zip(self.table, self.keys, self.values, contexts, strict=True):
                first, last = (0, context) if part == 0 else (context, len(key))
                keys.append(key[first:last])
                values.append(value[first:last])
                slots.append(slots_of(row, self.case.shape.block, first, last))
            if sum(map(len, slots)):
                layer.write(torch.cat(keys), torch.cat(values), torch.cat(slots))


def stored(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what *layer*'s cache stores (slots x heads x channels), not by the code under test."""
    if layer.cache_dtype == "nvfp4":
        sides = (coder.read(layer.bytes, layer.shape, side, layer.scales[side]) for side in (0, 1))
        key, value = sides
        return key, value
    found = []
    for side, scale in enumerate(layer.scales):
        half = layer.cache[:, side]
        if layer.cache_dtype != "auto":
            half = half.view(torch.float8_e4m3fn).double() * scale
        found.append(half.flatten(0, 1))
    return found[0], found[1]


def attend(scene: Scene, cache_dtype: str) -> tuple[Layer, torch.Tensor, torch.Tensor, dict[str, bool]]:
    """Write and attend. Returns the layer, the query as served, the output, and what was kept untouched."""
    case = scene.case
    layer = Layer(
        cache_dtype,
        case.shape,
        scene.blocks,
        scene.device,
        dtype=case.dtype,
        features=case.features,
        scales=case.scales if cache_dtype != "auto" else (1.0, 1.0),
        seed=scene.seed,
    )
    layer.poison()
    if not case.features.causal and cache_dtype != "nvfp4":
        # Upstream's kernel reads a little past a request that is not causal, and multiplies it by zero.
        layer.bytes.zero_()
    scene.store(layer)
    before = layer.raw.clone()
    rows = scene.query.shape[0]
    padded = layer.query_as_served(torch.cat([scene.query, scene.query[:PADDING]]))
    query = padded[:rows]
    output = torch.full(
        (rows + PADDING, *query.shape[1:]), float("nan"), device=scene.device, dtype=case.dtype
    )
    metadata = layer.metadata(case.batch, scene.table)
    segments = (metadata.softmax_segm_output, metadata.softmax_segm_max, metadata.softmax_segm_expsum)
    for part in segments:
        part.fill_(float("nan"))
    layer.attend(padded, metadata, output)
    kept = {
        "cache untouched": torch.equal(before, layer.raw),
        "guards held": layer.guards_held(),
        "rows of no request untouched": bool(output[rows:].isnan().all()),
        "finite": bool(output[:rows].isfinite().all()),
    }
    return layer, query, output[:rows], kept


def judge(case: Case, seed: int, device: torch.device, record: Recorder) -> None:
    """All caches over one case."""
    scene = Scene(case, device, seed)
    original = expected(
        scene.query,
        case.batch,
        list(zip(scene.keys, scene.values, strict=True)),
        Layer("auto", case.shape, 1, device, dtype=case.dtype, features=case.features, seed=seed),
    )
    errors: dict[str, tuple[Error, Error]] = {}
    for cache_dtype in ("auto", "fp8", "nvfp4"):
        if cache_dtype == "fp8" and device.type == "cpu":
            continue  # vLLM's FP8 cache wants a card
        layer, query, output, kept = attend(scene, cache_dtype)
        pairs = gather(layer, case.batch, scene.table, *stored(layer))
        wanted = expected(query.to(torch.float64), case.batch, pairs, layer)
        errors[cache_dtype] = Error.of(output, wanted), Error.of(output, original)
        ideal = Error.of(wanted, original)
        record.write(
            "attention",
            case=case.name,
            shape=str(case.shape),
            cache=cache_dtype,
            reader=[errors[cache_dtype][0].mean, errors[cache_dtype][0].largest],
            original=[errors[cache_dtype][1].mean, errors[cache_dtype][1].largest],
            format=ideal.mean,
        )
        if cache_dtype == "nvfp4":
            bad = [name for name, ok in kept.items() if not ok]
            record.check(
                f"memory: {case.name}, {case.shape}", not bad, f"not {', '.join(bad)}" if bad else ""
            )
    reader, plain = errors["nvfp4"][0], errors["auto"][0]
    allowed = min(TIMES * plain.mean + 2**-10, MOST)
    record.check(
        f"reader: {case.name}, {case.shape}",
        reader.mean <= allowed and reader.largest <= 2 * TIMES * plain.largest + 2**-7,
        f"error {reader.mean:.1e} (largest {reader.largest:.1e}), "
        f"over 16 bits {plain.mean:.1e} ({plain.largest:.1e})",
    )


def poisoned(device: torch.device, record: Recorder) -> None:
    """Check that a group that is not a number reaches the outputs that attend to it, and no others."""
    shape = Shape(4, 2, 64)
    batch = Batch((20, 20), (1, 1))
    scene = Scene(Case("not a number", shape, batch, dtype=torch.float16), device, 5)
    scene.values[0][7, 1, 3] = float("nan")
    _, _, output, _ = attend(scene, "nvfp4")
    hit = output[0, 2:].isnan().flatten(1)
    expected_hit = torch.zeros(64, dtype=torch.bool, device=device)
    expected_hit[:16] = True
    record.check("a value that is not a number is seen", bool((hit == expected_hit).all()))
    others = torch.cat([output[0, :2].flatten(), output[1].flatten()])
    record.check("and only by its own request and head", bool(others.isfinite().all()))


def narrow(device: torch.device, record: Recorder) -> None:
    """Upstream's error with windows shorter than a request's new tokens, where attention is not causal.

    The kernel (all releases up to 0.33.0) zeroes V by the window of a tile's first query alone, so its later
    queries lose the last keys of theirs. No drafter has such windows. What is checked is that an NVFP4 cache
    has nothing else wrong: tiles whose windows all reach the sequence's end are right.
    """
    window = 100
    batch = Batch((1000,), (300,))
    case = Case("narrow", Shape(16, 4, 128, 16), batch, Features(window=window, causal=False))
    scene = Scene(case, device, 11)
    layer, query, output, _ = attend(scene, "nvfp4")
    pairs = gather(layer, batch, scene.table, *stored(layer))
    wanted = expected(query.to(torch.float64), batch, pairs, layer)
    whole, last = Error.of(output, wanted), Error.of(output[-32:], wanted[-32:])
    record.write("fact", name="window of 100, 300 new tokens, not causal: error", value=f"{whole.mean:.1e}")
    record.check("narrow window, not causal: last tokens", last.mean <= MOST, f"error {last.mean:.1e}")


def run(spec: dict[str, Any], record: Recorder) -> None:
    """Return this worker's share of the cases: every *of*-th, from *worker* on."""
    device = torch.device(spec["device"])
    prepare(spec["device"])
    began = time.monotonic()
    worker, of = spec.get("worker", 0), spec.get("of", 1)
    for index, case in enumerate(cases(spec["device"])):
        if index % of == worker and spec["cases"] in f"{case.name}, {case.shape}":
            record.case(
                f"{case.name}, {case.shape}",
                lambda case=case, index=index: judge(case, spec["seed"] + index, device, record),
            )
    if worker == 0:
        record.case("not a number", lambda: poisoned(device, record))
        if device.type == "cuda":
            record.case("narrow window, not causal", lambda: narrow(device, record))
    record.write("fact", name=f"seconds of worker {worker}", value=round(time.monotonic() - began, 1))
