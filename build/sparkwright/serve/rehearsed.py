"""The vLLM of a recipe of rehearsals: the merged Python over upstream's wheel for the CPU."""

from __future__ import annotations

import msgspec

from sparkwright.merge import merge_patchset
from sparkwright.pipeline import Job
from sparkwright.recipes import Recipe, load_recipe
from sparkwright.rehearsal import serve_nearest
from sparkwright.serve.model import Installation


def install_rehearsal(job: Job, recipe: Recipe) -> Installation:
    """Return the merged Python of *job* installed for the CPU, with the model of rehearsals.

    Raises:
        RehearsalError: wheel, model or environment cannot be had.
        NotInStoreError: one of them is not in the store, and the network is off.
    """
    version = job.spec.lock.release.version
    report = merge_patchset(job.repository, job.merge_request(job.pristine, version))
    tree = serve_nearest(job, report)
    model = load_recipe(tree.recipe).model
    return Installation(
        python=tree.python,
        identity=tree.key,
        recipe=msgspec.structs.replace(recipe, model=model),
        described=f"vllm {tree.version} for the CPU with the merged Python of {job.spec.patchset}",
    )
