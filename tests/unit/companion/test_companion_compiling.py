"""From described modules to finished libraries: paths, commands, and a build by the machine's compiler."""

import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import companion_kit as kit
import pytest
from native_case import HERE
from small_extension import make_builder
from unit_kit import make_toolchain

from sparkwright.base.errors import NativeBuildError
from sparkwright.companion.build import Places, compile_modules, configure_modules
from sparkwright.companion.generators import (
    HEADERS,
    Command,
    DescribedModule,
    Description,
    GeneratorSite,
    describe_modules,
    source_tree,
)
from sparkwright.native.model import Inputs, Target, Toolchain
from sparkwright.upstream.network import IndexSettings
from sparkwright.upstream.releases import Access

GXX = Path("/usr/bin/g++")
NINJA = Path(sysconfig.get_path("scripts")) / "ninja"
# A FlashInfer in miniature, of C++ alone.
CORE = '''
import os, pathlib, sys
BASE = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"]) / ".cache" / "flashinfer" / "1.2.3" / "x"
DATA = pathlib.Path(__file__).resolve().parents[1] / "data"

class Spec:
    name = "sampling"
    embedded_cubin_factory = None
    ninja_path = BASE / "cached_ops" / "sampling" / "build.ninja"
    aot_path = pathlib.Path(os.environ.get("FINISHED", "/none"))
    is_aot = aot_path.is_file()

    def write_ninja(self):
        self.ninja_path.parent.mkdir(parents=True, exist_ok=True)
        gen = BASE / "generated" / "made.cpp"
        gen.parent.mkdir(parents=True, exist_ok=True)
        gen.write_text("int TVMFFICall(void); int made() { return TVMFFICall(); }\\n")
        out = self.ninja_path.parent
        self.ninja_path.write_text(f"""cxx = {os.environ["CXX"]}
flags = -fPIC -I{DATA}/include
rule compile
  command = $cxx -MMD -MF $out.d $flags -c $in -o $out
rule link
  command = $cxx $in -shared -o $out
build {out}/s.o: compile {DATA}/csrc/s.cpp
build {out}/made.o: compile {gen}
build {out}/sampling.so: link {out}/s.o {out}/made.o
""")
'''


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    return replace(make_toolchain(tmp_path / "chain"), cxx=GXX, ninja=NINJA)


@pytest.fixture
def site(tmp_path: Path) -> GeneratorSite:
    root = tmp_path / "wheels"
    files = {
        "fi/flashinfer/__init__.py": "",
        "fi/flashinfer/version.py": "__version__ = '1.2.3'\n",
        "fi/flashinfer/jit/__init__.py": "",
        "fi/flashinfer/jit/core.py": CORE,
        "fi/flashinfer/jit/sampling.py": "from .core import Spec\ndef gen():\n    return Spec()\n",
        "fi/flashinfer/data/csrc/s.cpp": "#include <s.h>\nint s() { return S; }\n",
        "fi/flashinfer/data/include/s.h": "#define S 7\n",
        "extra/tvm_ffi/__init__.py": "",
        "tvm/tvm_ffi/include/tvm.h": "",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return GeneratorSite(
        Path(sys.executable), root / "fi", (root / "extra",), root / "tvm", tmp_path / "space"
    )


def described(*commands: Command) -> list[DescribedModule]:
    return [DescribedModule("m", commands)]


def test_a_module_is_described_compiled_and_linked_without_this_machines_paths(
    store, repository, tmp_path, site, toolchain
):
    target = Target(HERE, "12.1a")
    description = describe_modules(kit.SPEC, kit.SPEC.modules, site, target, toolchain)
    tree = source_tree(Access(store, repository, IndexSettings(offline=True)), kit.SPEC, site)
    configuration = configure_modules(description.modules, Places(site, toolchain, description), GXX)
    assert str(tmp_path) not in repr(configuration)
    assert [unit.source for unit in configuration.units] == [
        "source/data/csrc/s.cpp",
        "source/generated/made.cpp",
    ]
    assert all("-MF" not in unit.argv for unit in configuration.units)
    builder = make_builder(store, repository, tmp_path / "logs")
    inputs = Inputs(tree=tree, sources={}, toolchain=toolchain, target=target)
    done = compile_modules(builder, inputs, configuration)["sampling"]
    assert str(tmp_path).encode() not in store.file_path(done.sha256).read_bytes()
    assert compile_modules(builder, inputs, configuration)["sampling"] == done


def test_headers_that_the_toolkit_lacks_lie_where_every_module_searches(store, repository, tmp_path, site):
    header = tmp_path / "nvrtc" / "nvidia" / "cu13" / "include" / "nvrtc.h"
    header.parent.mkdir(parents=True)
    header.write_text("int nvrtc;\n")
    access = Access(store, repository, IndexSettings(offline=True))
    with_it = source_tree(access, kit.SPEC, replace(site, headers=(tmp_path / "nvrtc",)))
    assert f"{HEADERS}/include/nvrtc.h" in repository.files(with_it)
    assert f"{HEADERS}/include/tvm.h" in repository.files(with_it)
    assert f"{HEADERS}/include/nvrtc.h" not in repository.files(source_tree(access, kit.SPEC, site))


def test_a_module_whose_name_is_as_long_as_a_file_system_allows_is_compiled(
    store, repository, tmp_path, site, toolchain
):
    """FlashInfer names attention after all its arguments."""
    long, target = "batch_prefill_with_kv_cache_".ljust(255, "x"), Target(HERE, "12.1a")
    core = site.flashinfer / "flashinfer" / "jit" / "core.py"
    core.write_text(core.read_text().replace('name = "sampling"', f'name = "{long}"'))
    description = describe_modules(kit.SPEC, kit.SPEC.modules, site, target, toolchain)
    tree = source_tree(Access(store, repository, IndexSettings(offline=True)), kit.SPEC, site)
    configuration = configure_modules(description.modules, Places(site, toolchain, description), GXX)
    inputs = Inputs(tree=tree, sources={}, toolchain=toolchain, target=target)
    done = compile_modules(make_builder(store, repository, tmp_path / "logs"), inputs, configuration)
    assert done[long].size
    logs = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert len(logs) == 2
    assert {name[-6:] for name in logs} == {"pp.log"}


def test_a_generated_file_with_a_path_of_this_machine_is_refused(store, repository, site):
    folder = site.workspace / ".cache" / "flashinfer" / "1.2.3" / "x" / "generated"
    folder.mkdir(parents=True)
    access = Access(store, repository, IndexSettings(offline=True))
    (folder / "made.cu").write_text("int one;\n")
    assert source_tree(access, kit.SPEC, site)
    (folder / "made.cu").write_text(f'#include "{folder}/other.h"\n')
    with pytest.raises(NativeBuildError, match=r"made\.cu"):
        source_tree(access, kit.SPEC, site)


def places(site: GeneratorSite, toolchain: Toolchain) -> Places:
    return Places(site, toolchain, Description((), "/python/include", "/env/tvm_ffi"))


def test_flashinfers_commands_keep_their_words(site: GeneratorSite, toolchain: Toolchain) -> None:
    source = f"{site.flashinfer}/flashinfer/data/csrc/a.cu"
    ops = site.workspace / ".cache/flashinfer/1/x/cached_ops"
    ops.mkdir(parents=True)
    words = f"{toolchain.cuda}/bin/nvcc --generate-dependencies-with-compile -MF {ops}/m/a.o.d"
    words += " -gencode=arch=compute_121a,code=sm_121a -isystem /env/tvm_ffi/include"
    command = Command(source, f"{ops}/m/a.o", (*words.split(), "-c", source, "-o", f"{ops}/m/a.o"))
    (unit,) = configure_modules(described(command), places(site, toolchain), GXX).units
    assert unit.argv == (
        "{work}/cuda/bin/nvcc", "-gencode=arch=compute_121a,code=sm_121a", "-isystem",
        "{work}/deps/tvm-ffi/include", "-c", "{work}/source/data/csrc/a.cu", "-o", "{work}/build/m/a.o",
        "-Xcompiler=-ffile-prefix-map={work}=/sparkwright",
    )  # fmt: skip
    assert (unit.arches, unit.output) == (("sm_121a",), "build/m/a.o")


def test_nvcc_that_links_gets_the_targets_compiler(site: GeneratorSite, toolchain: Toolchain) -> None:
    compiled = Command("/s/a.cu", "/b/a.o", ("nvcc", "-c", "/s/a.cu", "-o", "/b/a.o"))
    linked = Command("/b/a.o", "/b/m.so", ("nvcc", "-shared", "/b/a.o", "-o", "/b/m.so"))
    (link,) = configure_modules(described(compiled, linked), places(site, toolchain), GXX).links
    assert link.argv[1:5] == ("-Xlinker=--strip-all", "-Xlinker=--no-as-needed", "-ccbin", str(GXX))
    assert link.objects == ("/b/a.o",)


@pytest.mark.parametrize(
    ("source", "output"), [("", "/b/a.o"), ("/s/a.ptx", "/b/a.o"), ("/s/a.cu", "/b/a.h")]
)
def test_an_unknown_step_is_refused(site, toolchain, source, output):
    step = Command(source, output, ("python", "-m", "embed"))
    with pytest.raises(NativeBuildError, match="cannot be compiled ahead of time") as caught:
        configure_modules(described(step), places(site, toolchain), GXX)
    assert output in caught.value.because


def test_a_path_of_this_machine_is_refused(site: GeneratorSite, toolchain: Toolchain) -> None:
    foreign = Command("/a.cpp", "/b/a.o", ("c++", f"-I{site.flashinfer}/flashinfer/jit"))
    with pytest.raises(NativeBuildError, match="cannot be repeated elsewhere"):
        configure_modules(described(foreign), places(site, toolchain), GXX)


def test_a_build_file_that_ninja_refuses_is_named(site: GeneratorSite, toolchain: Toolchain) -> None:
    core = site.flashinfer / "flashinfer" / "jit" / "core.py"
    core.write_text(core.read_text().replace("rule link", "rule other"))
    with pytest.raises(NativeBuildError, match="module sampling cannot be read") as caught:
        describe_modules(kit.SPEC, kit.SPEC.modules, site, Target(HERE, "12.1a"), toolchain)
    assert "link" in caught.value.because


def test_an_answer_of_another_flashinfer_is_refused(site: GeneratorSite, toolchain: Toolchain) -> None:
    (site.flashinfer / "flashinfer" / "version.py").write_text("__version__ = '9'\n")
    with pytest.raises(NativeBuildError, match="another FlashInfer"):
        describe_modules(kit.SPEC, kit.SPEC.modules, site, kit.TARGET, toolchain)
    (site.flashinfer / "flashinfer" / "jit" / "sampling.py").write_text("raise ImportError('no torch')\n")
    with pytest.raises(NativeBuildError, match="did not describe") as caught:
        describe_modules(kit.SPEC, kit.SPEC.modules, site, kit.TARGET, toolchain)
    assert "no torch" in caught.value.because
