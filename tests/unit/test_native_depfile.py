"""Dependency files, as the real gcc writes them."""

import subprocess
from pathlib import Path

import pytest

from sparkwright.native.units import parse_depfile, read_depfile

NAMES = [
    "plain.h",
    "a b.h",
    "two  spaces.h",
    "tab\t.h",
    "a#b.h",
    "a$b.h",
    "$$.h",
    "a\\b.h",
    "a\\ b.h",
    "a\\\\ b.h",
    "a\\#b.h",
    "c:d.h",
    "c: d.h",
    "é\u2028.h",
    "%p'q.h",
]


def test_every_name_that_gcc_quotes_comes_back(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).touch()
    source = tmp_path / "the source.c"
    source.write_text("".join(f'#include "{name}"\n' for name in NAMES))
    subprocess.run(
        ["gcc", "-MD", "-MP", "-MF", "out.d", "-MT", "one.o two.o", "-MQ", "three $.o", "-c", source.name],
        cwd=tmp_path,
        check=True,
    )
    found = read_depfile(tmp_path / "out.d")
    assert found[0] == source.name
    assert [name for name in found if not name.startswith("/")] == [source.name, *NAMES]


def test_each_file_once_in_the_order_of_all_rules() -> None:
    text = "a.o b.o: x.c \\\n  y.h \\\n z.h\nc.o : y.h w.h\n\nz.h:\ny.h:\n# no rule\n"
    assert parse_depfile(text) == ("x.c", "y.h", "z.h", "w.h")


def test_nvcc_puts_a_space_before_the_colon() -> None:
    text = "a.o : a.cu \\\n    /x/bin/../include/cuda_runtime.h \\\n    h.h\n"
    assert parse_depfile(text) == ("a.cu", "/x/bin/../include/cuda_runtime.h", "h.h")


@pytest.mark.parametrize("text", ["", "\n", "a.o", "a.o b.h", "a.o:", "a.o: \\\n"])
def test_what_is_no_whole_rule_names_nothing(text: str) -> None:
    assert parse_depfile(text) == ()
