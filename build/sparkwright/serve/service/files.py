"""The files of a service, by templates, and the commands that install or remove it."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import ProcessError
from sparkwright.base.events import emit, warn
from sparkwright.base.process.run import run
from sparkwright.engine.server.lifecycle import BOOT_S
from sparkwright.serve.service.model import Scope, ServiceOptions, ServicePlaces
from sparkwright.serve.settings import read_key
from sparkwright.serve.warmup import LIMIT_S
from sparkwright.store.disk import atomic_file

_TEMPLATES = Path(__file__).with_name("templates")
_PUBLIC, _PRIVATE = 0o644, 0o600
_VARIABLES = """\
# Further variables of the service, one NAME=VALUE a line; read at its start. Mode 600.
# HF_TOKEN=
"""
_KEY_BYTES = 32
Commands = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PlannedFile:
    """A file that an installation writes; where *kept*, one that is there already is left as it is."""

    path: Path
    text: str
    mode: int = _PUBLIC
    kept: bool = False


@dataclass(frozen=True)
class InstallPlan:
    """The changes of an installation.

    Attributes:
        commands: commands to run then.
        afterwards: commands to run once the service has answered.
    """

    files: tuple[PlannedFile, ...] = ()
    commands: Commands = ()
    afterwards: Commands = ()


def plan_install(options: ServiceOptions, places: ServicePlaces, own_recipe: str = "") -> InstallPlan:
    """Return the files and commands of an installation; the key, which is made apart, is not among them.

    *own_recipe* is the content of a recipe of the user's own, which is copied.
    """
    files = [
        PlannedFile(places.unit, unit_text(options, places)),
        PlannedFile(places.variables, _VARIABLES, _PRIVATE, kept=True),
    ]
    if own_recipe:
        files.append(PlannedFile(places.recipe, own_recipe))
    systemctl = _systemctl(options.scope)
    before: Commands = ()
    if options.scope == "system":
        # In the format of sysusers.d(5).
        user = f'u {options.run_as} - "Serves models by sparkwright" /var/lib/sparkwright\n'
        files.append(PlannedFile(places.sysusers, user))
        before = _owned(options, places)
    return InstallPlan(
        tuple(files),
        commands=(*before, (*systemctl, "daemon-reload")),
        afterwards=((*systemctl, "enable", places.unit_name),),
    )


def _owned(options: ServiceOptions, places: ServicePlaces) -> Commands:
    """Return the commands that make the service's user and its folders, and show that it can run sparkwright.

    The environments stay root's: their files are links into the installer's cache, and root runs them.
    """
    written = [str(path) for path in places.written]
    return (
        ("systemd-sysusers", str(places.sysusers)),
        ("install", "-d", "-m", "0755", str(places.state)),
        ("install", "-d", "-m", "0750", "-o", options.run_as, *written),
        ("chown", "-R", f"{options.run_as}:", *written),  # with the user's own group, whatever its name is
        ("runuser", "-u", options.run_as, "--", options.program, "--version"),
    )


def _systemctl(scope: Scope) -> tuple[str, ...]:
    return ("systemctl", "--user") if scope == "user" else ("systemctl",)


# Texts -----------------------------------------------------------------------------------------------------


def command_line(options: ServiceOptions, places: ServicePlaces) -> tuple[str, ...]:
    """Return the command of the service, but for its key."""
    words = [options.program, "serve", options.recipe, "--watch"]
    words += ["--python", str(places.state / "current" / "bin" / "python")]
    words += ["--host", options.host, "--port", str(options.port)]
    words += ["--use", options.use] if options.use else []
    for setting in options.settings:
        words += ["--set", setting]
    words += ["--sidecars", f"{options.sidecars_gib:g}"] if options.sidecars_gib else []
    words += ["--offline"] if options.offline else []
    words += ["--force"] if options.force else []
    return tuple(words)


def unit_text(options: ServiceOptions, places: ServicePlaces) -> str:
    """Return the text of the unit; the key's path in it is that of the credential."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(  # noqa: S701 - no HTML: filters quote what comes from outside
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "escaped": _escaped,
        "quoted": _quoted,
        # An argument of a unit's command, where variables would be expanded.
        "argument": lambda word: _quoted(word.replace("$", "$$")),
    }
    return made.get_template("unit.service").render(
        options=options,
        places=places,
        command=command_line(options, places),
        system=options.scope == "system",
        start_s=round(BOOT_S + LIMIT_S),
    )


def _escaped(text: object) -> str:
    """Return *text* with systemd's specifiers escaped."""
    return str(text).replace("%", "%%")


def _quoted(word: object) -> str:
    """Return *word* as one word of a line that takes several (systemd.syntax(7))."""
    text = _escaped(word)
    if text and not set(text) & set(" \t\"'\\;"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Writing ---------------------------------------------------------------------------------------------------


def make_key(path: Path, given: str = "") -> bool:
    """Make a key of mode 600 in *path*, unless there is one; return true if it was made.

    Raises:
        ConfigError: the file that is there may be read by others, or holds no key.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE)
    except FileExistsError:
        read_key(path)
        return False
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        os.fchmod(descriptor, _PRIVATE)  # whatever the umask is
        stream.write(f"{given or f'sk-{secrets.token_urlsafe(_KEY_BYTES)}'}\n")
    return True


def apply_plan(plan: InstallPlan, *, run_commands: bool = True) -> None:
    """Write the files of *plan*, and run its commands, but those for a service that has answered.

    Raises:
        ProcessError: a command failed.
    """
    for file in plan.files:
        if not (file.kept and file.path.exists()):
            _write(file)
    if run_commands:
        run_all(plan.commands)


def uninstall(places: ServicePlaces, *, run_commands: bool = True) -> list[Path]:
    """Remove a service, return its files that were there; key, variables, own recipe and environments stay.

    What is not loaded cannot be stopped, and need not be: commands may fail.
    """
    systemctl, anything = _systemctl(places.scope), tuple(range(256))
    if run_commands:
        run_all(((*systemctl, "disable", "--now", places.unit_name),), accept=anything)
    removed = [path for path in (places.unit, places.sysusers, places.record) if path.exists()]
    for path in removed:
        path.unlink()
        emit("service.removed", path=str(path))
    if run_commands:
        after = ((*systemctl, "daemon-reload"), (*systemctl, "reset-failed", places.unit_name))
        run_all(after, accept=anything)
    return removed


def _write(file: PlannedFile) -> None:
    with atomic_file(file.path, mode=file.mode) as handle:
        os.write(handle, file.text.encode())
    emit("service.written", path=str(file.path))


def run_all(commands: Commands, accept: tuple[int, ...] = (0,)) -> None:
    """Run *commands*, one after the other.

    Raises:
        ProcessError: one ended with a status that is not in *accept*.
    """
    for command in commands:
        try:
            run(command, timeout=120, accept=accept)
        except ProcessError as error:
            warn(f"{' '.join(command)} failed: {error.because}")
            raise
