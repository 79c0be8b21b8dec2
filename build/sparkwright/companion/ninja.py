"""Read the build files that FlashInfer writes for ninja (the ninja manual, "Ninja file reference").

Of ninja's language they use variables, rules and builds. What else may appear is refused, so that no command
is understood by half.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparkwright.base.errors import NativeBuildError

_CONTINUED = re.compile(r"\$\n[ ]*")
_ASSIGNMENT = re.compile(r"(\w+) *= *(.*)")
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|([$ :]))")
_MOST_EXPANSIONS = 20


@dataclass(frozen=True)
class NinjaCommand:
    """One command of a build file.

    Attributes:
        rule: the rule's name.
        inputs: the files that it reads.
        output: the file that it writes.
    """

    rule: str
    inputs: tuple[str, ...]
    output: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class _Block:
    head: str
    body: Mapping[str, str]


def read_ninja(text: str, name: str) -> list[NinjaCommand]:
    """Return the commands of the build file *text*, in its order.

    Args:
        text: the file.
        name: the module that it builds, for errors.

    Raises:
        NativeBuildError: it uses something that is not known here.
    """
    variables: dict[str, str] = {}
    rules: dict[str, str] = {}
    found: list[NinjaCommand] = []
    for block in _blocks(text, name):
        kind, _, rest = block.head.partition(" ")
        if kind == "rule":
            rules[rest.strip()] = block.body.get("command", "")
        elif kind == "build":
            found.append(_command(rest, {**variables, **block.body}, rules, name))
        elif kind != "default":
            variables.update([_assignment(block.head, name)])
    return found


def _blocks(text: str, name: str) -> Iterator[_Block]:
    """Yield each line that is not indented, with the assignments that are indented below it."""
    head, body = "", dict[str, str]()
    for line in _CONTINUED.sub("", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0] == " ":
            body.update([_assignment(line.strip(), name)])
            continue
        if head:
            yield _Block(head, body)
        head, body = line, {}
    if head:
        yield _Block(head, body)


def _assignment(line: str, name: str) -> tuple[str, str]:
    if found := _ASSIGNMENT.fullmatch(line):
        return found[1], found[2]
    raise _unknown(name, f"it has the line {line[:120]!r}")


def _command(rest: str, variables: dict[str, str], rules: Mapping[str, str], name: str) -> NinjaCommand:
    outputs, colon, inputs = rest.partition(": ")
    rule, *files = inputs.split()
    if not colon or rule not in rules or "|" in files or len(outputs.split()) != 1:
        raise _unknown(name, f"it has the build {rest[:120]!r}")
    scope = {**variables, "in": " ".join(files), "out": outputs}
    argv = tuple(shlex.split(_expanded(rules[rule], scope, name)))
    return NinjaCommand(rule, tuple(files), outputs, argv)


def _expanded(text: str, scope: Mapping[str, str], name: str) -> str:
    """Return *text* with the values of its variables; one that is not set is empty, as for ninja."""

    def value(found: re.Match[str]) -> str:
        return scope.get(found[1] or found[2], "") if not found[3] else f"${found[3]}"

    for _ in range(_MOST_EXPANSIONS):
        after = _REFERENCE.sub(value, text)
        if after == text:
            return re.sub(r"\$([$ :])", r"\1", text)
        text = after
    raise _unknown(name, "its variables name each other")


def _unknown(name: str, because: str) -> NativeBuildError:
    return NativeBuildError(
        f"the build file of FlashInfer's module {name} cannot be read",
        because=because,
        next_step="this FlashInfer writes other build files: adapt companion/ninja.py to it",
    )
