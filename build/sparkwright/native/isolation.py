"""Compile without a network, so that code of a pull request cannot connect out of a build."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sparkwright.base.errors import ProcessError, SparkwrightError, ToolError
from sparkwright.base.process import run, which


def isolated(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command for *argv* in a separate network namespace, where even the loopback device is down.

    Files and processes stay shared: this keeps a build off the network, and is no sandbox. A compiler cache
    that listens on localhost cannot be used with it.
    """
    # Root needs no user namespace, and in a new one its files would belong to the user "nobody".
    options = ("-n",) if os.geteuid() == 0 else ("-r", "-n")
    return ("unshare", *options, "--", *argv)


def require_isolation() -> None:
    """Refuse a machine where `isolated` does not work.

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
