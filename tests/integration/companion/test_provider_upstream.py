"""The release's own FlashInfer finds a companion's kernels, and those alone that are for it and its card."""

import json
import os
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import companion_kit as kit
import pytest
from msgspec import structs

from sparkwright.companion.model import load_companion
from sparkwright.companion.wheel import write_companion
from sparkwright.native.packages import unpack_package
from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.probe.environment import prepare_environment
from sparkwright.store.paths import Store, open_store

ROOT = Path(__file__).parents[3]
LIST = ROOT / "patchsets" / "companions" / "0.33.toml"
ASK = """
import json
from flashinfer.jit import env
from flashinfer.jit.sampling import gen_sampling_module
from flashinfer.jit.page import gen_page_module
asked = {one.name: one for one in (gen_sampling_module(), gen_page_module())}
print("\\n" + json.dumps({
    "providers": [one.provider_id for one in env.FLASHINFER_AOT_PROVIDERS],
    "found": {name: str(one.get_library_path()) for name, one in asked.items() if one.is_aot},
}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


@pytest.fixture(scope="module")
def flashinfer() -> tuple[Path, str]:
    """Return an interpreter, and the path of FlashInfer's wheel with what it imports."""
    with open_job(ROOT, BuildOptions(series="0.33")) as job:
        spec = load_companion(LIST)
        folders = [unpack_package(job.access, one) for one in (spec.flashinfer, *spec.imports)]
    return prepare_environment(open_store()), os.pathsep.join(map(str, folders))


@pytest.fixture
def site(store: Store, tmp_path: Path) -> Path:
    """Return a folder with a companion of `sampling` for the list's FlashInfer, as pip lays it out."""
    module = kit.module(store, kit.library(tmp_path, "sampling"))
    content = kit.content([module])
    spec = structs.replace(content.spec, flashinfer=load_companion(LIST).flashinfer)
    wheel = write_companion(store, replace(content, spec=spec), tmp_path / "dist").path
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return tmp_path / "site"


def asked(flashinfer: tuple[Path, str], site: Path, work: Path, arch: str = "12.1a") -> Mapping[str, Any]:
    """Return what FlashInfer finds, without a card, for one of *arch*."""
    python, path = flashinfer
    own = {name: value for name, value in os.environ.items() if not name.startswith("FLASHINFER_")}
    places = {"PYTHONPATH": f"{site}{os.pathsep}{path}", "FLASHINFER_WORKSPACE_BASE": str(work)}
    done = subprocess.run(
        [python, "-s", "-c", ASK],
        check=True, capture_output=True, text=True,
        env={**own, **places, "FLASHINFER_CUDA_ARCH_LIST": arch},
    )  # fmt: skip
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_flashinfer_finds_the_kernels_of_its_version_and_card_alone(flashinfer, site, tmp_path):
    library = site / "flashinfer_jit_cache/providers/sm121a/jit_cache/sampling/sampling.so"
    found = asked(flashinfer, site, tmp_path)
    assert found == {"providers": ["sm121a"], "found": {"sampling": str(library)}}
    for arch in ("9.0a", "12.0f"):
        assert asked(flashinfer, site, tmp_path, arch) == {"providers": ["sm121a"], "found": {}}
    manifest = library.parents[2] / "manifest.json"
    stated = manifest.read_text()
    for version in ("0.7.3+cu130", "0.7.2.post1+cu129"):
        manifest.write_text(json.dumps({**json.loads(stated), "version": version}))
        assert asked(flashinfer, site, tmp_path) == {"providers": [], "found": {}}, "another provider's"
    manifest.write_text(stated)
    shim = site / "flashinfer_jit_cache/__init__.py"
    shim.write_text(shim.read_text().replace("0.7.2.post1+cu130", "0.7.3+cu130"))
    assert asked(flashinfer, site, tmp_path) == {"providers": [], "found": {}}, "another version's package"
