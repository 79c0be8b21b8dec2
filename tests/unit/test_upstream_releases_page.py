"""The page of upstream's releases: notes come from each carry's own TOML."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit import VERSION, revision, write_carry

from sparkwright.carries import load_carries, load_carry

if TYPE_CHECKING:
    from sparkwright.carries import Carry

ROOT = Path(__file__).parents[2]
PAGE = """\
# Releases

| carry | 0.24.0 |
|---|---|
| `second` | applied |
| `first` | applied |
| `silent` | applied |
| `removed` | applied |

<!-- notes: generated -->
* stale
<!-- end of notes -->

End.
"""


@pytest.fixture(scope="module")
def script() -> Any:
    found = importlib.util.spec_from_file_location("releases", ROOT / "scripts" / "upstream_releases.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def carry(root: Path, name: str, **changes: Any) -> Carry:
    return load_carry(
        write_carry(root, name, patches={VERSION: b"x"}, **{"revision": [revision()], **changes})
    )


def test_notes_are_those_of_the_tables_carries_in_its_order(script: Any, tmp_path: Path) -> None:
    carries = {
        name: carry(tmp_path, name, later_releases=text)
        for name, text in {
            "first": "One\ntwo.\n",
            "second": "Two \\1.\n",
            "new": "Not in the table.\n",
        }.items()
    }
    carries["silent"] = carry(tmp_path, "silent")
    page = script.with_notes(PAGE, carries)
    assert page == PAGE.replace("* stale\n", "\n* **`second`**: Two \\1.\n* **`first`**: One\n  two.\n\n")
    assert script.with_notes(page, carries) == page


@pytest.mark.parametrize("page", [PAGE.replace("<!-- end of notes -->\n", ""), PAGE + PAGE])
def test_a_page_without_one_place_for_notes_is_refused(script: Any, page: str) -> None:
    with pytest.raises(SystemExit):
        script.with_notes(page, {})


def test_the_repositorys_page_has_the_notes_of_its_carries(script: Any) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.with_notes(page, load_carries(ROOT / "carries")) == page
