"""Plan and write the files of a service."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sparkwright.base.errors import ProcessError
from sparkwright.base.events import emit, warn
from sparkwright.serve.service.compose import compose_text
from sparkwright.serve.service.model import Scope, ServiceOptions, ServicePlaces
from sparkwright.serve.service.unit import sysusers_text, unit_text

_PUBLIC, _PRIVATE = 0o644, 0o600
_VARIABLES = """\
# Further variables of the service, one NAME=VALUE a line; read at its start. Mode 600.
# HF_TOKEN=
"""


@dataclass(frozen=True)
class PlannedFile:
    """A file that an installation writes.

    Attributes:
        kept: an existing one is left as it is.
    """

    path: Path
    text: str
    mode: int = _PUBLIC
    kept: bool = False


@dataclass(frozen=True)
class InstallPlan:
    """The changes of an installation or of its removal.

    Attributes:
        commands: commands to run then, where systemd runs; for a removal, before it.
        afterwards: commands to run once the service has answered; for a removal, after it.
        removed: files to remove.
    """

    files: tuple[PlannedFile, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    afterwards: tuple[tuple[str, ...], ...] = ()
    removed: tuple[Path, ...] = ()


def plan_install(options: ServiceOptions, places: ServicePlaces) -> InstallPlan:
    """Return the files and commands of an installation; the key, which is made apart, is not among them."""
    inside = replace(places, root=Path("/"))  # what is written for an image names the image's own paths
    files = [
        PlannedFile(places.unit, unit_text(options, inside)),
        PlannedFile(places.compose, compose_text(options, inside)),
        PlannedFile(places.variables, _VARIABLES, _PRIVATE, kept=True),
    ]
    if options.recipe_text:
        files.append(PlannedFile(places.recipe, options.recipe_text))
    systemctl = _systemctl(options.scope)
    before: tuple[tuple[str, ...], ...] = ()
    if options.scope == "system":
        files.append(PlannedFile(places.sysusers, sysusers_text(options)))
        before = _owned(options, inside)
    return InstallPlan(
        tuple(files),
        commands=(*before, (*systemctl, "daemon-reload")),
        afterwards=((*systemctl, "enable", places.unit_name),),
    )


def _owned(options: ServiceOptions, places: ServicePlaces) -> tuple[tuple[str, ...], ...]:
    """Return the commands that make the service's user and its folders, and show that it can run sparkwright.

    The environments stay root's: their files are links into the installer's cache, and root runs them.
    """
    written = [str(path) for path in places.written]
    return (
        ("systemd-sysusers", str(places.sysusers)),
        ("install", "-d", "-m", "0755", str(places.state)),
        ("install", "-d", "-m", "0750", "-o", options.run_as, *written),
        ("chown", "-R", f"{options.run_as}:", *written),  # with the user's own group, whatever its name is
        ("runuser", "-u", options.run_as, "--", str(options.program), "--version"),
    )


def plan_uninstall(places: ServicePlaces) -> InstallPlan:
    """Return the removal of a service; its key, variables, own recipe and environments stay."""
    systemctl = _systemctl(places.scope)
    return InstallPlan(
        commands=((*systemctl, "disable", "--now", places.unit_name),),
        afterwards=((*systemctl, "daemon-reload"), (*systemctl, "reset-failed", places.unit_name)),
        removed=(places.unit, places.compose, places.sysusers, places.record),
    )


def _systemctl(scope: Scope) -> tuple[str, ...]:
    return ("systemctl", "--user") if scope == "user" else ("systemctl",)


def apply_plan(plan: InstallPlan, *, run_commands: bool) -> None:
    """Write and remove the files of *plan*, and run its commands, but those for a service that has answered.

    Args:
        plan: the plan.
        run_commands: run them; without, as for an image, only files change.

    Raises:
        ProcessError: a command failed.
    """
    anything = tuple(range(256))  # what is not loaded cannot be stopped, and need not be
    if plan.removed and run_commands:
        run_all(plan.commands, accept=anything)
    for file in plan.files:
        if not (file.kept and file.path.exists()):
            _write(file)
    for path in plan.removed:
        path.unlink(missing_ok=True)
        emit("service.removed", path=str(path))
    if run_commands:
        run_all(plan.afterwards if plan.removed else plan.commands, accept=anything if plan.removed else (0,))


def _write(file: PlannedFile) -> None:
    file.path.parent.mkdir(parents=True, exist_ok=True)
    part = file.path.with_name(f".{file.path.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=file.mode)
    part.chmod(file.mode)
    part.write_text(file.text, encoding="utf-8")
    part.replace(file.path)
    emit("service.written", path=str(file.path))


def run_all(commands: tuple[tuple[str, ...], ...], accept: tuple[int, ...] = (0,)) -> None:
    """Run *commands*, one after the other.

    Raises:
        ProcessError: one ended with a status that is not in *accept*.
    """
    from sparkwright.base.process import run

    for command in commands:
        try:
            run(command, timeout=120, accept=accept)
        except ProcessError as error:
            warn(f"{' '.join(command)} failed: {error.because}")
            raise
