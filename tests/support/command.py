"""The command line in the process of the test, since its imports take longer than most commands."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

from sparkwright.cli.main import main

SEVERAL = """
import contextlib, io, json, sys
from sparkwright.cli.main import main
for words in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(json.loads(words))
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""
"""A program that runs a command for each line of JSON, and answers status, output and errors of each."""


def call(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``sparkwright`` with *words* to its end; what it starts runs in processes of its own."""
    arguments, out, err = [str(word) for word in words], io.StringIO(), io.StringIO()
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(cwd):
            status = main(arguments)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def begin(*words: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """Start ``sparkwright`` with *words* as a process of its own."""
    argv = [sys.executable, "-m", "sparkwright", *map(str, words)]
    return subprocess.Popen(argv, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
