"""Run one file of upstream's tests with pytest, and write what becomes of each test as it ends.

    python run_tests.py --tree TREE --file tests/… --report lines.jsonl --seconds 60 [--alone tests.json]

The report is a line of JSON for each event, so that a run which is killed leaves what it has found: a list of
the tests (``collected``), a test that starts (``started``), and what became of one (``test``, ``outcome``,
``said``). A file that cannot be imported, or that skips itself, is reported as one test with the file's name.
With ``--alone`` only the tests that a file lists are run, each in a fork of its own after the collection.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

_SAID = 600


class OutOfTimeError(BaseException):
    """A test ran for longer than it may; no handler of the test's is to catch it."""


class Reporter:
    """Writes a line for each event, limits each test's time, and runs the tests that are wanted."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.lines = args.report.open("a", encoding="utf-8", buffering=1)
        self.file, self.seconds, self.alone = args.file, args.seconds, args.alone is not None
        self.only = None
        if args.only or args.alone:
            self.only = frozenset(json.loads((args.only or args.alone).read_text(encoding="utf-8")))

    def write(self, **event: object) -> None:
        """Write one line."""
        self.lines.write(json.dumps(event) + "\n")

    def ended(self, test: str, outcome: str, said: object) -> None:
        """Write what became of *test*."""
        crash = getattr(said, "reprcrash", None)
        if isinstance(said, tuple):  # of a skipped one: file, line and reason
            text = str(said[2])[:_SAID]
        else:
            text = str(said)[-_SAID:] if crash is None else crash.message[:_SAID]
        self.write(test=test, outcome=outcome, said=text)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report a file that cannot be collected."""
        if report.outcome != "passed":
            self.ended(self.file, "skipped" if report.outcome == "skipped" else "error", report.longrepr)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the wanted tests."""
        if self.only is not None:
            items[:] = [one for one in items if one.nodeid in self.only]
        self.write(collected=[item.nodeid for item in items])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run each test in a fork, where it is to be alone."""
        if not self.alone:
            return None
        for item in session.items:
            if (pid := os.fork()) == 0:
                try:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Limit the time of *item*."""
        self.write(started=item.nodeid)
        self.found: tuple[str, object] = ("passed", "")
        signal.signal(signal.SIGALRM, self.stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.ended(item.nodeid, *self.found)

    def stop(self, *_: object) -> None:
        """End the test that runs."""
        raise OutOfTimeError(f"it ran for more than {self.seconds:g} s")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of a test's three phases."""
        if report.outcome == "skipped":
            self.found = ("skipped", report.longrepr)
        elif report.outcome == "failed" and self.found[0] != "failed":
            self.found = ("failed", report.longrepr)


def main() -> int:
    """Run the file that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--only", type=Path, help="run the tests that this file lists")
    parser.add_argument("--alone", type=Path, help="the same, each in a process of its own")
    args = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = ["-q", "--rootdir", args.tree, "-p", "no:cacheprovider", "--assert", "plain", "--tb", "short"]
    settings = Path(args.tree, "pyproject.toml")
    options += ["-c", str(settings)] if settings.is_file() else []
    options += ["-p", "pytest_asyncio"] if importlib.util.find_spec("pytest_asyncio") else []
    options += ["-W", "ignore"]
    reporter = Reporter(args)
    pytest.main([*options, str(Path(args.tree, args.file))], plugins=[reporter])
    reporter.write(finished=True)
    return 0


if __name__ == "__main__":
    main()
    os._exit(0)  # threads and at-exit hooks of what was tested must not hold the run
