"""A night on vLLM's real 0.27.1: a carry that merges without a conflict and takes away what upstream added.

Both carries choose pages at which NVFP4 layers lose nothing beside 16-bit ones. One of them also refuses
states of another size than the pages, which 0.24.0 cannot plan. 0.27.1 pads them a few lines further down.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kit
import pytest
import tomlkit
from world import write_patch

from sparkwright.base.errors import NeedsPersonError
from sparkwright.cli.main import main
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.options import BuildOptions

pytestmark = [pytest.mark.upstream, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PLANNING = "vllm/v1/core/kv_cache_utils.py"
LARGEST = "    max_page_size = max(page_sizes)\n"
MULTIPLE = "    max_page_size = -(-max(page_sizes) // min(page_sizes)) * min(page_sizes)\n"
LOOP = "        if layer_spec.page_size_bytes == max_page_size:\n"
REFUSAL = """\
        if isinstance(layer_spec, MambaSpec):
            raise NotImplementedError(f"{layer_name}: a state cannot be padded")
"""
PROBE = '''\
"""Are NVFP4 pages whole beside 16-bit ones, and states planned where the release says that it pads them?"""

import torch
from probekit import expect
from vllm.v1.core.kv_cache_utils import unify_kv_cache_spec_page_size
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, MambaSpec


def layer(dtype, mode=KVQuantMode.NONE):
    return FullAttentionSpec(
        block_size=16,
        num_kv_heads=4,
        head_size=128,
        dtype=dtype,
        kv_quant_mode=mode,
        indexes_kv_by_block_stride=True,
    )


def probe():
    quantised, wide = layer(torch.uint8, KVQuantMode.NVFP4), layer(torch.bfloat16)
    pages = unify_kv_cache_spec_page_size({"a": quantised, "b": wide})
    taken = pages["a"].page_size_bytes / pages["a"].block_size
    needed = quantised.page_size_bytes / quantised.block_size
    expect(taken == needed, f"an NVFP4 layer takes {taken / needed:.2f} times its values")

    if "Mamba layers" in unify_kv_cache_spec_page_size.__doc__:
        state = MambaSpec(block_size=16, shapes=((wide.page_size_bytes // 8,),), dtypes=(torch.float32,))
        try:
            padded = unify_kv_cache_spec_page_size({"state": state, "b": wide})["state"].page_size_bytes
        except NotImplementedError:
            padded = 0
        expect(padded == wide.page_size_bytes, "a state that upstream pads is refused")
'''


@pytest.fixture(scope="module")
def pin() -> tuple[str, bytes]:
    """The SHA-256 of the pinned release's sdist, and its file that plans the cache."""
    with open_job(ROOT, BuildOptions(series="0.24")) as job:
        entry = job.repository.files(job.pristine.tree, [PLANNING])[PLANNING]
        return job.spec.lock.sdist.sha256, job.repository.blob(entry.blob)


def judged(folder: Path, pin: tuple[str, bytes], changes: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """The exit status of a night on 0.27.1 with one carry, and what it says of the carry."""
    sdist, before = pin
    after = before.decode()
    for old, new in changes.items():
        assert after.count(old) == 1, old
        after = after.replace(old, new)
    (folder / "patchsets").mkdir()
    shutil.copy(open_checkout(ROOT, "0.24").lock_path, folder / "upstream.lock")
    listed = {"format": 1, "name": "spark", "series": "0.24", "summary": "One", "carries": ["pages"]}
    (folder / "patchsets" / "0.24.toml").write_text(tomlkit.dumps(listed))
    patch = write_patch(((PLANNING, before),), ((PLANNING, after),))
    revision = {"release": "0.24.0", "sdist-sha256": sdist, "patch": "0.24.0.patch"}
    probing = {"seconds": 240, "memory-mib": 4096, "triton": "off"}
    kit.write_carry(
        folder / "carries",
        "pages",
        patches={"0.24.0": patch},
        probe=PROBE,
        probing=probing,
        revision=[revision],
    )
    words = ("nightly", "--onto", "0.27.1", "--no-build", "--no-tests", "--history", "none", "--json")
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out):
        status = main(words)
    ((carry,),) = (target["carries"] for target in json.loads(out.getvalue())["targets"])
    return status, carry


def test_what_upstream_pads_and_a_carry_refuses_is_wrong_though_clean(tmp_path, pin):
    status, carry = judged(tmp_path, pin, {LARGEST: MULTIPLE, LOOP: REFUSAL + LOOP})
    assert status == NeedsPersonError.exit_code
    assert (carry["outcome"], carry["judgement"]) == ("applied", "wrong-though-clean")
    assert "refused" in carry["finding"]


def test_its_twin_that_refuses_nothing_is_needed(tmp_path, pin):
    status, carry = judged(tmp_path, pin, {LARGEST: MULTIPLE})
    found = (status, carry["outcome"], carry["judgement"])
    assert found == (0, "applied", "needed"), carry["finding"]
