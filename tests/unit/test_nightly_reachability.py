"""Code that upstream's default path no longer runs."""

from collections.abc import Mapping

import pytest
from kit import Scene, make_tree

from sparkwright.git import Repository
from sparkwright.nightly.reachability import Reach, reach_lost

RUNNER = "def run():\n    return 1\n\n\ndef other():\n    return run()\n"
FIXED = RUNNER.replace("return 1", "return 2")
CHOICE = "vllm/config/vllm.py"
BY_MODEL = "def use_v2_model_runner():\n    return arch in DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES\n"
FILES = {
    "pyproject.toml": '[project.scripts]\nvllm = "vllm.cli.main:main"\n',
    "vllm/__init__.py": "",
    "vllm/cli/__init__.py": "",
    "vllm/cli/main.py": "def main():\n    from vllm.worker import Worker\n",
    "vllm/worker/__init__.py": "from .base import Worker\n",
    "vllm/worker/base.py": "import vllm.runner as r\n\nWorker = r.other\nMODELS = {'a': ('llama', 'L')}\n",
    "vllm/runner.py": RUNNER,
    "vllm/models/llama.py": "from vllm.layers import (\n    linear,\n)\n",
    "vllm/layers/linear.py": "",
    "vllm/idle.py": "from vllm.worker import Worker\n",
    "tests/test_idle.py": "import vllm.idle\n",
    CHOICE: BY_MODEL,
}


@pytest.fixture
def why(repository: Repository, scene: Scene):
    """Why a carry that fixes runner.py has lost its reach on a tree with *changes*."""

    def ask(changes: Mapping[str, str | None], *, runner: str = "both", path: str = "vllm/runner.py") -> str:
        scene.base = {path: FILES[path]}
        carry = scene.add(f"fix-{len(scene.carries)}", {path: FIXED}, runner=runner)
        target = {name: text for name, text in {**FILES, **changes}.items() if text is not None}
        fixed = {**target, path: target[path].replace("return 1", "return 2")}
        pin, new, merged = (make_tree(repository, files) for files in (FILES, target, fixed))
        return reach_lost(carry, [path], Reach(repository, pin), Reach(repository, new), merged)

    return ask


class TestReached:
    def test_imports_strings_and_registries_lead_on(self, repository: Repository) -> None:
        reached = Reach(repository, make_tree(repository, FILES)).reached
        assert reached == {path for path in FILES if path.startswith("vllm/")} - {"vllm/idle.py", CHOICE}

    def test_a_whole_name_in_a_string_leads_on(self, repository: Repository) -> None:
        named = FILES | {"vllm/cli/main.py": "WORKER = 'vllm.idle.Thing'\n"}
        assert "vllm/idle.py" in Reach(repository, make_tree(repository, named)).reached

    def test_without_an_entry_point_everything_counts(self, repository: Repository) -> None:
        files = {path: text for path, text in FILES.items() if path != "pyproject.toml"}
        assert "vllm/idle.py" in Reach(repository, make_tree(repository, files)).reached


class TestLost:
    def test_no_module_imports_it_any_more(self, why) -> None:
        base = FILES["vllm/worker/base.py"].replace("vllm.runner as r", "vllm.layers.linear as r")
        assert "vllm/runner.py" in why({"vllm/worker/base.py": base})
        assert why({"vllm/worker/base.py": FILES["vllm/worker/base.py"] + "MORE = 1\n"}) == ""

    def test_only_tests_import_it(self, why) -> None:
        base = "Worker = None\n"
        assert why({"vllm/worker/base.py": base, "tests/test_runner.py": "import vllm.runner\n"})

    def test_nothing_names_the_function_any_more(self, why) -> None:
        unused = RUNNER.replace("return run()", "return 3")
        assert "run" in why({"vllm/runner.py": unused})
        used = {"vllm/runner.py": unused, "vllm/layers/linear.py": "from vllm.runner import run\n"}
        assert why(used) == ""

    def test_it_was_idle_at_the_pin_already(self, why) -> None:
        assert why({"vllm/runner.py": RUNNER}, path="vllm/idle.py") == ""


class TestRunner:
    ALWAYS = "def use_v2_model_runner():\n    return True\n"

    def test_one_for_v1_alone_is_idle_where_v2_is_every_models_default(self, why) -> None:
        assert "V1" in why({CHOICE: self.ALWAYS}, runner="v1")

    def test_others_are_not_nor_is_it_where_the_model_decides(self, why) -> None:
        assert why({CHOICE: self.ALWAYS}, runner="both") == ""
        assert why({CHOICE: self.ALWAYS}, runner="v2") == ""
        assert why({CHOICE: BY_MODEL}, runner="v1") == ""
        assert why({CHOICE: None}, runner="v1") == ""
