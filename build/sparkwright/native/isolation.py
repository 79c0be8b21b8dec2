"""Compiling without a network: what a pull request makes the build run shall not call home."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sparkwright.base.errors import ProcessError, SparkwrightError, ToolError
from sparkwright.base.process import run, which

if TYPE_CHECKING:
    from collections.abc import Sequence


def isolated(argv: Sequence[str]) -> tuple[str, ...]:
    """*argv* in a network namespace of its own, where not even the loopback device is up.

    Files and processes stay shared: this keeps a build off the network, and is no sandbox. A compiler cache
    that is asked over a socket on localhost cannot be used with it.
    """
    # Root needs no user namespace, and with one of its own its files would belong to nobody known.
    options = ("-n",) if os.geteuid() == 0 else ("-r", "-n")
    return ("unshare", *options, "--", *argv)


def require_isolation() -> None:
    """Make sure that `isolated` works on this machine.

    Raises:
        ToolError: it does not.
    """
    what = "the build cannot be kept off the network on this machine"
    try:
        which("unshare", hint="install util-linux")
        run(isolated(["true"]), timeout=30)
    except ProcessError as error:
        raise ToolError(
            what,
            because=error.because,
            next_step="allow user namespaces (sysctl kernel.unprivileged_userns_clone and "
            "kernel.apparmor_restrict_unprivileged_userns), build as root, or build without isolation",
        ) from error
    except SparkwrightError as error:
        raise ToolError(what, because=str(error), next_step="install util-linux") from error
