"""The probe of `mamba-block-units` on vLLM 0.33.0, with wrong repairs in place of the carry's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.merge import merge_patchset
from sparkwright.pipeline import BuildOptions, open_job
from sparkwright.probe.runner import run_probe
from sparkwright.probe.setup import Trees

pytestmark = [pytest.mark.upstream, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PROBE = ROOT / "carries" / "mamba-block-units" / "probe.py"

# Runs the probe in forks of one process: with each wrong repair it has to find the defect.
PLANTED = """
import inspect
import os
import runpy
import textwrap

from probekit import Defect
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import MambaManager

run = runpy.run_path({probe!r})["probe"]
split = textwrap.dedent(inspect.getsource(Scheduler._mamba_block_aligned_split))
namespace = Scheduler._mamba_block_aligned_split.__globals__


def unit(expression):
    def plant():
        assert split.count("self.mamba_block_size") == 1
        found = {{}}
        exec(split.replace("self.mamba_block_size", expression), namespace, found)
        Scheduler._mamba_block_aligned_split = found["_mamba_block_aligned_split"]

    return plant


def unsplit():
    Scheduler._mamba_block_aligned_split = lambda self, request, tokens, *rest: tokens


def uncached():
    MambaManager.cache_blocks = lambda *args, **kwargs: None


def found(plant):
    child = os.fork()
    if not child:
        plant()
        try:
            run()
        except Defect:
            os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def probe():
    plants = {{
        "the carry": unit("self.mamba_block_size"),
        "the smallest block": unit("self.cache_config.block_size"),
        "the blocks that are hashed": unit("self.hash_block_size"),
        "blocks twice as large": unit("2 * self.mamba_block_size"),
        "one repair of two": unit(
            "(self.block_size if self.mamba_partial_cache_hit else self.cache_config.block_size)"
        ),
        "no split": unsplit,
        "no cache": uncached,
    }}
    statuses = {{name: found(plant) for name, plant in plants.items()}}
    raise RuntimeError(f"{{statuses}}")
"""


def test_wrong_repairs_fail_the_probe(tmp_path):
    with open_job(ROOT, BuildOptions(series="0.33")) as job:
        release = job.spec.lock.release.version
        carry = next(carry for carry in job.spec.carries if carry.name == "mamba-block-units")
        report = merge_patchset(job.repository, job.merge_request(job.pristine, release))
        setup = Trees(job.store, job.repository, report.pristine, report.tree).importing(offline=False)
        planted = tmp_path / "probe.py"
        planted.write_text(PLANTED.format(probe=str(PROBE)))
        run = run_probe(
            job.store, setup.python, planted, carry.spec.probe, setup.stands[1].tree, version=release
        ).run
    statuses = {
        "the carry": 0,
        "the smallest block": 1,
        "the blocks that are hashed": 1,
        "blocks twice as large": 1,
        "one repair of two": 1,
        "no split": 1,
        "no cache": 1,
    }
    assert run.message.endswith(f"RuntimeError: {statuses}"), run.message
