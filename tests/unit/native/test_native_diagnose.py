"""Why a compiler failed, from what compilers really print."""

from pathlib import Path

import pytest
from kit import finish, python, small_disk

from sparkwright.native.failures import diagnose, error_lines

COMMAND = "nvcc -c error.cu -o error.o -Werror\n\n"

REFUSED = """\
/x/a.h(12): warning #177-D: variable "error_count" was declared but never referenced
/x/ops.cu(40): error: identifier "frobnicate" is undefined
      frobnicate(1);
      ^
/x/ops.cu(41): error: expected a ";"

2 errors detected in the compilation of "/x/ops.cu".
"""

# By cause: statuses, and what was said. A status of 0 is one without an object.
SAID = {
    "memory": [
        (1, "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"),
        (9, "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"),
        (137, "/bin/sh: line 1:  4711 Killed                  cicc --arch\n"),
        (137, "Killed\n"),
        (1, "cc1plus: out of memory allocating 65536 bytes after a total of 1048576 bytes\n"),
        (1, "terminate called after throwing an instance of 'std::bad_alloc'\n"),
        (1, "virtual memory exhausted: Cannot allocate memory\n"),
        (255, "ptxas fatal   : Memory allocation failure\n"),
        (-9, ""),
        (137, ""),
    ],
    "disk": [
        (1, "/tmp/ccX.s: fatal error: error writing to /tmp/ccY.s: No space left on device\n"),
        (1, "/usr/bin/as: BFD: a.o: No space left on device\n"),
        (1, "cicc: Disk quota exceeded\n"),
    ],
    "refused": [
        (1, REFUSED),
        (1, "note: 'Killed' is declared here\nerror: no\n"),
        (1, "/x/killed_by.cu(3): error: class Killed is undefined\n"),
        (6, "nvcc error   : 'cicc' died due to signal 6\n"),
        (-11, ""),
    ],
    "no-output": [(0, "")],
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.o"


@pytest.mark.parametrize(
    ("cause", "status", "said"), [(cause, *case) for cause, cases in SAID.items() for case in cases]
)
def test_each_cause_is_known_without_an_object_and_with_an_empty_one(log, output, cause, status, said):
    log.write_text(COMMAND + said)
    for make in (lambda: None, output.touch):
        make()
        found = diagnose(status, log, output)
        assert found is not None
        assert found.cause == cause
        assert found.detail


def test_success_is_status_0_and_an_object_whatever_was_said(log: Path, output: Path) -> None:
    output.write_bytes(b"x")
    log.write_text(COMMAND)
    found = diagnose(3, log, output)
    assert found is not None
    assert (found.cause, found.detail) == ("refused", "it ended with status 3")
    log.write_text(COMMAND + "error: Killed\nNo space left on device\n")
    assert diagnose(0, log, output) is None


def test_the_command_itself_says_nothing(log: Path, output: Path) -> None:
    log.write_text("cc '-DWHY=\"No space left on device\"' -DKilled\n\nx.cu: error: no\n")
    found = diagnose(1, log, output)
    assert found is not None
    assert found.cause == "refused"
    assert found.lines == ("x.cu: error: no",)


def test_the_lines_of_the_errors_are_found() -> None:
    assert error_lines(REFUSED) == (
        '/x/ops.cu(40): error: identifier "frobnicate" is undefined',
        '/x/ops.cu(41): error: expected a ";"',
    )


def test_a_very_long_log_is_read_at_both_ends(log: Path, output: Path) -> None:
    noise = b"note: nothing\n" * 400_000
    log.write_bytes(COMMAND.encode() + b"a.cu: error: first\n" + noise + b"\xff fatal error: last\n")
    found = diagnose(1, log, output)
    assert found is not None
    assert found.lines == ("a.cu: error: first", "\ufffd fatal error: last")


def test_a_full_disk_is_known_though_nothing_could_be_written(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom sparkwright.native.failures import diagnose\n"
        "disk = Path(sys.argv[1])\n(disk / 'log').write_text('cc\\n\\n')\n"
        "print(diagnose(1, disk / 'log', disk / 'a.o').cause)\n"
        "try:\n    (disk / 'ballast').write_bytes(bytes(4 << 20))\nexcept OSError: pass\n"
        "print(diagnose(1, disk / 'log', disk / 'a.o').cause)"
    )
    disk = tmp_path / "disk"
    prefix = small_disk(disk, "3m")
    assert finish(python(script, disk, prefix=prefix)).split() == ["refused", "disk"]
