"""The model runners that are the default of some model, by the text of upstream's configuration."""

import pytest
from kit import make_tree

from sparkwright.git.repository import Repository
from sparkwright.nightly.judging import runners

CHOICE = "vllm/config/vllm.py"
BY_MODEL = "def use_v2_model_runner():\n    return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "def use_v2_model_runner():\n    return arch in DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES\n",
            {"v1", "v2"},
        ),
        ("def use_v2_model_runner():\n    return True\n", {"v2"}),
        ("V1 = True\n", {"v1"}),
        (None, {"v1"}),
    ],
)
def test_it_is_v1_until_v2_may_be_chosen(repository: Repository, text: str | None, found: set[str]) -> None:
    files = {"vllm/__init__.py": ""} | ({} if text is None else {CHOICE: text})
    assert runners(repository, make_tree(repository, files)) == found
