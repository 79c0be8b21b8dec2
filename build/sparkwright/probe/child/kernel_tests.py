"""Call upstream's own tests of kernels for the sake of their launches, whatever they then find.

The tests hold the calls that upstream keeps in step with its wrappers. pytest is not here; a small stand-in
takes its place. A test with several parameters runs until each value was there once, and a test that goes
on to compute references is cut off.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import signal
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_RUNS = 8  # of one test


class CutOff(BaseException):
    """The time of a test is over. Not an `Exception`, so that no test takes it for a failure."""


class _Patches:
    """pytest's ``monkeypatch``, as far as these tests use it."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def setattr(self, target: Any, name: Any, *value: Any, **_: Any) -> None:
        if isinstance(target, str):
            value, (module, _, name) = (name,), target.rpartition(".")
            target = importlib.import_module(module)
        if hasattr(target, name):
            before = getattr(target, name)
            self._undo.append(lambda: setattr(target, name, before))
        setattr(target, name, *value)

    def setenv(self, name: str, value: str, *_: Any) -> None:
        before = os.environ.get(name)
        self._undo.append(
            lambda: os.environ.pop(name, None) if before is None else os.environ.update({name: before})
        )
        os.environ[name] = str(value)

    def delenv(self, name: str, *_: Any, **__: Any) -> None:
        self.setenv(name, "")
        del os.environ[name]

    def undo(self) -> None:
        for one in reversed(self._undo):
            one()
        self._undo.clear()


class _Mark:
    """``pytest.mark``: keeps parameters, and takes everything else as it comes."""

    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **options: Any) -> Any:
            def decorate(test: Any) -> Any:
                if name == "parametrize":
                    names = (
                        [one.strip() for one in args[0].split(",")]
                        if isinstance(args[0], str)
                        else list(args[0])
                    )
                    rows = [getattr(row, "values", row) if isinstance(row, _Row) else row for row in args[1]]
                    rows = [
                        tuple(row) if len(names) > 1 else (row[0] if isinstance(row, _Values) else row,)
                        for row in rows
                    ]
                    test.__dict__.setdefault("parameters", []).append((names, rows))
                return test

            bare = name != "parametrize" and len(args) == 1 and not options and inspect.isroutine(args[0])
            return args[0] if bare else decorate

        return mark


class _Values(tuple):  # noqa: SLOT001
    """What ``pytest.param`` holds."""


class _Row(types.SimpleNamespace):
    values: _Values


def _skip(reason: str = "", **_: Any) -> None:
    raise RuntimeError(f"skipped: {reason}")


def stand_in() -> None:
    """Put the stand-in where tests look for pytest."""
    pytest = types.ModuleType("pytest")

    def importorskip(name: str, *_: Any, **__: Any) -> Any:
        return importlib.import_module(name)

    def fixture(*args: Any, **_: Any) -> Any:
        return args[0] if args and callable(args[0]) else lambda function: function

    pytest.__dict__.update(
        mark=_Mark(), fixture=fixture, skip=_skip, fail=_skip, xfail=_skip, importorskip=importorskip,
        param=lambda *values, **_: _Row(values=_Values(values)), approx=lambda value, **_: value,
        raises=lambda *_, **__: contextlib.suppress(Exception), MonkeyPatch=_Patches,
        LogCaptureFixture=object, FixtureRequest=object, skipif=None, warns=lambda *_,
        **__: contextlib.nullcontext(), __version__="9",
    )  # fmt: skip
    sys.modules["pytest"] = pytest


def rows_of(test: Any) -> list[dict[str, Any]]:
    """Return arguments for as many runs of *test* as show each value of each parameter once."""
    parameters = test.__dict__.get("parameters", [])
    count = min(MOST_RUNS, max((len(rows) for _, rows in parameters), default=1))
    return [
        {
            name: v
            for names, rows in parameters
            if rows
            for name, v in zip(names, rows[run % len(rows)], strict=False)
        }
        for run in range(count)
    ]


@contextlib.contextmanager
def cut_off(seconds: float) -> Iterator[None]:
    """Raise `CutOff` in the block after *seconds* of CPU time, which others on the machine don't change."""

    def ring(*_: object) -> None:
        raise CutOff

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fixed(fixture: Callable[[], Any]) -> Any:
    """Return what a *fixture* of the test's own module gives, if it takes nothing."""
    value = fixture()
    return next(value) if inspect.isgenerator(value) else value


def run_file(file: Path, tree: Path, seconds: float) -> dict[str, str]:
    """Call all tests of *file*, for *seconds* each at most; return by name why one came to no end."""
    name = ".".join(file.relative_to(tree).with_suffix("").parts)
    said: dict[str, str] = {}
    quiet = io.StringIO()
    try:
        with cut_off(30), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            module = importlib.import_module(name)
    except (Exception, CutOff) as error:  # noqa: BLE001 - named
        return {name: reason(error)}
    for label, test in [(n, t) for n, t in vars(module).items() if n.startswith("test_") and callable(t)]:
        wanted = set(inspect.signature(test).parameters)
        for row in rows_of(test):
            patches = _Patches()
            given = row | ({"monkeypatch": patches} if "monkeypatch" in wanted else {})
            try:
                given |= {name: fixed(getattr(module, name)) for name in wanted - given.keys()}
                with cut_off(seconds), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                    test(**{key: value for key, value in given.items() if key in wanted})
            except (Exception, CutOff) as error:  # noqa: BLE001 - most fail where results are compared
                said[f"{name}::{label}"] = reason(error)
            finally:
                patches.undo()
    return said


def reason(error: BaseException) -> str:
    """Return what went wrong in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
