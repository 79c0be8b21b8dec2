"""Pull requests of proposals, through GitHub's own command line program."""

from __future__ import annotations

import json
from pathlib import Path

from sparkwright.base.errors import ProcessError
from sparkwright.base.process import run, which

_PATIENCE_S = 120.0


def require_gh() -> str:
    """Return the path of ``gh``.

    Raises:
        ToolError: it is not installed.
    """
    return which(
        "gh", hint="install GitHub's command line program and run 'gh auth login', or use --push alone"
    )


def open_pull_request(root: Path, branch: str, *, title: str, body: str) -> str:
    """Open a pull request for the pushed *branch*, or give its open one the new text; returns its address.

    Raises:
        ToolError: ``gh`` is not installed.
        ProcessError: it failed, as without a login.
    """
    gh = require_gh()

    def ask(*words: str, text: str = "") -> str:
        return run([gh, "pr", *words], cwd=root, stdin=text.encode(), timeout=_PATIENCE_S).text

    listed = ask("list", "--head", branch, "--state", "open", "--limit", "1", "--json", "url")
    try:
        known = [str(entry["url"]) for entry in json.loads(listed)]
    except (ValueError, TypeError, KeyError) as error:
        raise ProcessError("gh did not answer as expected", because=listed[:400]) from error
    if known:
        ask("edit", known[0], "--title", title, "--body-file", "-", text=body)
        return known[0]
    return ask("create", "--head", branch, "--title", title, "--body-file", "-", text=body)
