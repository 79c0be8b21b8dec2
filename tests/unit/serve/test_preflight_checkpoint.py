"""Checkpoints: each planted fault in a folder is found, and the healthy twin is silent."""

import json

import pytest
from checkpoint_kit import DENSE, MODELOPT, QWEN_27B, SMALL, nvfp4_27b, write_checkpoint, write_shard

from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.checkpoint import find_folder, find_quantization, read_checkpoint, read_shard
from sparkwright.serve.preflight.files import check_files, check_quantization
from sparkwright.serve.preflight.shape import loaded_weights

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4993448960\n"
TWO = [{"a": ("BF16", (8, 8))}, {"b": ("BF16", (8, 8)), "c": ("F32", (4,))}]


def recipe(**keys) -> Recipe:
    return Recipe(**{"format": 1, "name": "r", "title": "r", "model": "m", **keys})


def found(folder, **options) -> dict[str, str]:
    """The checks that fired, with their levels."""
    return {one.check: one.level for one in check_files(read_checkpoint("m", folder), **options)}


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "model", DENSE, TWO)


def test_a_whole_checkpoint_is_silent(folder, tmp_path):
    assert found(folder) == {}
    assert found(write_checkpoint(tmp_path / "one", DENSE)) == {}
    checkpoint = read_checkpoint("m", folder)
    assert checkpoint.bytes == 8 * 8 * 2 * 2 + 16 == checkpoint.index_bytes
    assert [tensor.name for tensor in checkpoint.tensors] == ["a", "b", "c"]


FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
INDEX = "model.safetensors.index.json"
HEADERS = (b"", b"\1\0\0", b"\xff" * 8, b"\5\0\0\0\0\0\0\0[1,2]", b"\2\0\0\0\0\0\0\0{]",
           b"\7\0\0\0\0\0\0\0" + b'{"a":1}')  # fmt: skip


def gone(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def named(old, new):
    return lambda folder: (folder / old).rename(folder / new)


def too_long(folder):
    with (folder / FIRST).open("ab") as stream:
        stream.write(b"\0")


# What is done to a whole checkpoint, what is found, and a word of what is said of it.
FAULTS = [
    (text(FIRST, POINTER), {"lfs-pointer": "refuse"}, FIRST),
    (text("tokenizer.json", POINTER), {"lfs-pointer": "refuse"}, "tokenizer.json"),
    (text("config.json", POINTER), {"lfs-pointer": "refuse"}, "config.json"),
    (gone(SECOND), {"shard-missing": "refuse"}, SECOND),
    (gone(SECOND, INDEX), {"shard-missing": "refuse"}, SECOND),
    (lambda folder: write_shard(folder / SECOND, TWO[1], missing=1), {"shard-size": "refuse"}, "header"),
    (lambda folder: write_shard(folder / SECOND, TWO[1], missing=100), {"shard-size": "refuse"}, "header"),
    (too_long, {"shard-size": "refuse"}, "header"),
    (text("config.json", "[1, 2]"), {"unreadable": "refuse"}, "config.json"),
    (text(INDEX, "[1, 2]"), {"unreadable": "refuse"}, INDEX),
    (gone("config.json"), {"no-config": "refuse"}, "holds none"),
    (gone("tokenizer.json"), {"tokenizer": "refuse"}, "no file of one"),
    # It names a class, and has no vocabulary.
    (named("tokenizer.json", "tokenizer_config.json"), {"tokenizer": "refuse"}, "tokenizer_config.json"),
]


@pytest.mark.parametrize(("plant", "expected", "said"), FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(folder, plant, expected, said):
    plant(folder)
    (finding,) = check_files(read_checkpoint("m", folder))
    assert {finding.check: finding.level} == expected
    assert said in f"{finding.what} {finding.because}"
    assert not finding.liftable


@pytest.mark.parametrize("content", HEADERS)
def test_a_damaged_header_is_found(folder, content):
    (folder / FIRST).write_bytes(content)
    assert read_shard(folder / FIRST).problem
    assert found(folder)["shard-damaged"] == "refuse"


def test_what_is_not_needed_is_not_missed(folder, tmp_path):
    (folder / "tokenizer.json").unlink()
    assert found(folder, tokenizer=False) == {}
    empty = write_checkpoint(tmp_path / "empty", DENSE, [])
    assert found(empty) == {"no-weights": "refuse"}
    assert found(empty, weights=False) == {}


def test_mistrals_own_configuration_is_not_judged(folder):
    (folder / "config.json").rename(folder / "params.json")
    assert judged(folder, weights="compressed-tensors") == {}


def test_a_gguf_file_is_named(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert found(tmp_path) == {"gguf": "refuse"}


def snapshot(cache, name="org/model", commit="c0ffee"):
    """A model in the cache as huggingface_hub lays it out: files are links into blobs."""
    repository = cache / f"models--{name.replace('/', '--')}"
    blobs, folder = repository / "blobs", repository / "snapshots" / commit
    write_checkpoint(blobs, DENSE, TWO)
    folder.mkdir(parents=True)
    for path in sorted(blobs.iterdir()):
        (folder / path.name).symlink_to(f"../../blobs/{path.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return folder


def test_a_snapshot_is_healthy_and_found_by_its_name(tmp_path):
    folder = snapshot(tmp_path / "hub")
    assert find_folder("org/model", {"HF_HOME": str(tmp_path)}) == folder
    assert find_folder("org/model", {"HF_HUB_CACHE": str(tmp_path / "hub")}) == folder
    assert find_folder("org/model", {"HF_HOME": str(tmp_path)}, "c0ffee") == folder
    assert find_folder("org/model", {"HF_HOME": str(tmp_path)}, "other") is None
    assert find_folder("org/other", {"HF_HOME": str(tmp_path)}) is None
    assert found(folder) == {}


def judged(folder, **keys) -> dict[str, str]:
    return {one.check: one.level for one in check_quantization(recipe(**keys), read_checkpoint("m", folder))}


@pytest.fixture
def nvfp4(tmp_path):
    return write_checkpoint(tmp_path / "nvfp4", QWEN_27B, nvfp4_27b(), modelopt=MODELOPT)


def test_a_quantized_checkpoint_of_a_27b_is_silent(nvfp4):
    assert found(nvfp4) == {}
    assert judged(nvfp4, weights="modelopt") == {}
    assert judged(nvfp4, weights="modelopt", flags={"quantization": "modelopt_fp4"}) == {}
    quantization = find_quantization(read_checkpoint("m", nvfp4))
    assert (quantization.method, quantization.algorithm) == ("modelopt", "NVFP4")


def test_weights_that_the_recipe_has_otherwise_are_found(nvfp4, folder):
    assert judged(nvfp4, weights="compressed-tensors") == {"quantization-recipe": "refuse"}
    assert judged(nvfp4, weights="none") == {"quantization-recipe": "refuse"}
    assert judged(folder, weights="modelopt") == {"quantization-recipe": "refuse"}
    assert judged(folder, weights="none") == {}
    assert judged(folder) == {}


def test_a_configuration_that_was_left_behind_is_found(nvfp4):
    (nvfp4 / "hf_quant_config.json").unlink()
    assert judged(nvfp4) == {"quantization-unstated": "refuse"}


def test_weights_that_were_swapped_are_found(tmp_path):
    folder = write_checkpoint(tmp_path / "swapped", DENSE, [SMALL], modelopt=MODELOPT)
    assert judged(folder) == {"quantization-absent": "refuse"}


def test_known_failures(nvfp4, tmp_path):
    (nvfp4 / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4_SVD"}}))
    assert judged(nvfp4) == {"quantization-known-failure": "refuse"}
    vision = [{**nvfp4_27b()[0], "model.visual.blocks.0.proj.weight_scale": ("F8_E4M3", (8,))}]
    folder = write_checkpoint(tmp_path / "vision", QWEN_27B, vision, modelopt=MODELOPT)
    assert judged(folder) == {"vision-quantized": "warn"}


def test_the_bytes_that_are_loaded(nvfp4):
    checkpoint = read_checkpoint("m", nvfp4)
    every = sum(path.stat().st_size for path in nvfp4.glob("*.safetensors"))
    headers = sum(shard.size - sum(t.bytes for t in shard.tensors) for shard in checkpoint.shards)
    assert checkpoint.bytes == every - headers
    plain = loaded_weights(recipe(), checkpoint)
    mtp = 5120 * 10240 * 2
    assert (plain.bytes, plain.left_out) == (checkpoint.bytes - mtp, mtp)
    assert plain.by_dtype["U8"] == 64 * 3 * 17408 * 5120 // 2
    assert loaded_weights(recipe(speculative={"method": "mtp"}), checkpoint).bytes == checkpoint.bytes
    text = loaded_weights(recipe(flags={"language-model-only": True}), checkpoint)
    assert plain.bytes - text.bytes == 1152 * 1536 * 2
    two = {"tensor-parallel-size": 2}
    assert loaded_weights(recipe(flags=two), checkpoint).bytes == plain.bytes // 2
    assert loaded_weights(recipe(flags=two), checkpoint, draft=True).bytes == checkpoint.bytes // 2
    whole = recipe(flags=two, speculative={"draft_tensor_parallel_size": 1})
    assert loaded_weights(whole, checkpoint, draft=True).bytes == checkpoint.bytes


def test_types_are_the_models_once_loaded(tmp_path):
    wide = {"a.weight": ("F32", (64, 64)), "a.A_log": ("F32", (64,)), "rotary_emb.inv_freq": ("F32", (64,))}
    folder = write_checkpoint(tmp_path / "wide", {**DENSE, "torch_dtype": "float32"}, [wide])
    checkpoint = read_checkpoint("m", folder)
    assert loaded_weights(recipe(), checkpoint).bytes == 64 * 64 * 2 + 64 * 4
    assert loaded_weights(recipe(flags={"dtype": "float32"}), checkpoint).bytes == 64 * 64 * 4 + 64 * 4
    assert loaded_weights(recipe(flags={"quantization": "fp8"}), checkpoint).bytes == 64 * 64 + 64 * 4
