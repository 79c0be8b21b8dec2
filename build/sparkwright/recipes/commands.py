"""Commands that serve a model: those of a shell script, and those that run a container.

Nothing is run. Read `commands_of_script` first. Of a shell's syntax
assignments, ``$NAME`` and ``${NAME:-default}`` are read; conditions are not decided, and arrays are refused.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.base.errors import ConfigError

Level = Literal["left out", "wrong", "dangerous"]

# Names of secrets: their last word, or any of them.
SECRET = re.compile(
    r"(?:^|[_-])(?:token|keys?|pass|pat|jwt|auth|bearer|(?:access_key_)id)$|[_-]pwd$|(?:^|[_-])(?:api_?keys?"
    r"|secret|password|passwd|passphrase|credentials?|authorization)(?:[_-]|$)",
    re.IGNORECASE,
)
# Values that are secrets whatever holds them: keys by their beginnings, signed tokens, and addresses with a
# password or a key.
SECRET_VALUE = re.compile(
    r"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|nvapi-)[\w-]{16,}|\beyJ[\w-]+\.[\w-]+\.[\w-]*|://[^/\s:@]*:[^/\s@]+@"
    r"|[?&][\w-]*(?:token|key|secret|signature|sig)=[^&\s]+",
    re.IGNORECASE,
)
_OUTPUT = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`")  # of another command
LONGEST = 1 << 18  # characters; a command has a few thousand
# A variable by its name, or in braces with what stands for it where it has no value.
_USE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-=?])((?:[^{}]|\{[^{}]*\})*))?\})")
_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*][^}]*\})")
UNKNOWN = re.compile(r"\$[\w{(@*]|`")  # a value that the text does not hold
_QUOTED_OR_COMMENT = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|(?<![^\s;])#[^\n]*""")
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_CONDITION = re.compile(r"^[ \t]*((?:if|case|for|while|until|test|\[\[?)[ \t].*)", re.MULTILINE)
_PARENTHESES, _RESTORED = str.maketrans("()", "\ue000\ue001"), str.maketrans("\ue000\ue001", "()")
# Of images whose entry point is the server itself: what stands behind is a model or an option.
_SERVER_IMAGE = re.compile(r"vllm", re.IGNORECASE)
_ARGUMENT = re.compile(r"--?[a-zA-Z]|[\w.-]+/[\w.-]+$|/")
# Redirections and pipes end a command's arguments.
_SHELL = re.compile(r"\d?(?:>|<)|&>")
_ENDS = frozenset(";&|()\n")
_KEYWORDS = frozenset({"then", "else", "do", "{"})
_SERVER = re.compile(r"vllm\.entrypoints\.(?:openai\.api_server|cli\.main)$")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_INSTALLS = re.compile(r"(?:sudo )?(?:uv )?(?:pip3?|apt|apt-get)(?: -\S+)* install\b")
_SOURCED = re.compile(r"(?:source|\.) (?!\S*/activate\b)\S+$")
UNREAD = "the variables in it are not read"
_VARIABLE = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"(?<![\w-])\w+\+?=\(")
# Options that no other server has, where an image's name does not say which it is.
_OF_VLLM = re.compile(r"--(?:max[-_]model[-_]len|gpu[-_]memory[-_]utilization)(?:=|$)")
# Commands that serve nothing, whatever their words are.
_SHOWS = frozenset(
    {"#", "alias", "cat", "echo", "grep", "ls", "man", "pgrep", "pkill", "printf", "test", "[", "which"}
)
# Of ``docker run``: options without a value; all others have one.
_ALONE = {
    *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--init", "--privileged", "-P"),
    *("--publish-all", "--read-only", "-q", "--quiet", "--no-healthcheck", "--oom-kill-disable"),
}
_ASSIGNED = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True)
class Remark:
    """A word of the command that was left out of the recipe, or is wrong or dangerous, with the reason."""

    level: Level
    what: str
    because: str

    def __post_init__(self) -> None:
        """Take secrets out, whatever the word is."""
        what = _ASSIGNED.sub(lambda one: f"{one[1]}=…" if SECRET.search(one[1]) else one[0], self.what)
        object.__setattr__(self, "what", SECRET_VALUE.sub("…", what))


@dataclass
class ServeCommand:
    """A ``vllm serve`` line with its surroundings.

    Attributes:
        words: arguments behind ``serve``.
        environment: variables by name.
        mounts: folders of the host by their place in the container.
        contained: it runs in a container, so that its folders are not the host's.
    """

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    contained: bool = False
    remarks: list[Remark] = field(default_factory=list)


def assigned(text: str) -> tuple[str, str]:
    """Return the name and value of NAME=VALUE; a NAME alone has the shell's, as Docker takes it."""
    name, equals, value = text.partition("=")
    return name, value if equals else f"${name}"


def commands_of_script(text: str, environment: Mapping[str, str]) -> Iterator[ServeCommand]:
    """Yield the servers that a script starts, with the variables that it exports before.

    Variables that only the script itself uses are not the server's.

    Raises:
        ConfigError: it has an array, whose words are not read.
        ValueError: a quotation has no end, or a variable grows beyond any command.
    """
    known, own, used = dict(environment), dict[str, str](), set[str]()
    plain = _without_comments(text)
    if array := _ARRAY.search(plain):
        raise ConfigError(
            "arrays of a shell are not read",
            because=f"the script has {array[0]}…)",
            next_step="write the options right behind 'vllm serve'",
        )
    remarks = [
        Remark("wrong", found[1].strip(), "conditions are not decided: see what they would change")
        for found in _CONDITION.finditer(plain)
    ]
    for words in _split(plain):
        line = " ".join(words)
        if _INSTALLS.match(line):
            remarks.append(Remark("left out", line, "the runtime is locked"))
        elif _SOURCED.match(line):
            remarks.append(Remark("left out", line, UNREAD))
        exports = words[0] == "export"
        rest, before = _assignments(words[exports:], {**known, **own}, everything=exports)
        if rest:
            here = used | _used_names(" ".join(rest))
            exported = {
                name: value for name, value in known.items() if name not in here or name.startswith("VLLM_")
            }
            rest = _expanded_words(rest, {**known, **own, **before})
            for one in _of_words(rest, {**exported, **before}):
                one.remarks += remarks
                yield one
        else:
            used |= set() if exports else _used_names(line)
            (known if exports else own).update(before)


def _without_comments(text: str) -> str:
    """Return *text* without comments, with continued lines joined.

    A shell ends the command at a comment beside the last backslash, but its author meant it to go on.
    """

    def kept(found: re.Match[str]) -> str:
        if not found[0].startswith("#"):
            return found[0]
        return "\\" if found[0].rstrip().endswith("\\") else ""

    lines = ("" if line.lstrip().startswith("#") else line for line in text.split("\n"))
    return _CONTINUED.sub(" ", _QUOTED_OR_COMMENT.sub(kept, "\n".join(lines)))


def _split(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script without comments, up to its redirections.

    The output of another command is one word, ``$(…)`` where that has several.
    """

    def output(found: re.Match[str]) -> str:
        shown = "$(…)" if re.search(r"[\s'\"\\]", found[0]) else found[0]
        return shown.translate(_PARENTHESES)

    lexer = shlex.shlex(_OUTPUT.sub(output, text), posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    ended = False
    for token in [*lexer, "\n"]:
        if token and set(token) <= _ENDS:
            if words:
                yield words
            words, ended = [], False
        elif not (ended := ended or bool(_SHELL.match(token))) and (words or token not in _KEYWORDS):
            words.append(token.translate(_RESTORED))


def _assignments(
    words: list[str], values: Mapping[str, str], *, everything: bool
) -> tuple[list[str], dict[str, str]]:
    """Return *words* behind the variables that are set before them, and these; of *everything* no words."""
    before: dict[str, str] = {}
    while words and ((found := _VARIABLE.fullmatch(words[0])) or everything):
        if found:
            old = before.get(found[1], values.get(found[1], "")) if found[2] else ""
            before[found[1]] = old + expanded(found[3], values)
        words = words[1:]
    return words, before


def _used_names(text: str) -> set[str]:
    """Return the names of variables that *text* uses."""
    return {found[1] or found[2] for found in _USE.finditer(text)}


def expanded(word: str, values: Mapping[str, str]) -> str:
    """Return *word* with shell variables that are known, or have a default, replaced; secrets are not.

    Raises:
        ValueError: it grows beyond any command.
    """

    def value(found: re.Match[str]) -> str:
        name, sign = found[1] or found[2], (found[3] or "")[-1:]
        known = None if SECRET.search(name) else values.get(name)
        if sign in {"-", "="}:
            return known or expanded(found[4], values)
        return found[0] if known is None else known

    whole = _USE.sub(value, word)
    if len(whole) > LONGEST:
        raise ValueError("a variable that grows beyond any command")
    return whole


def _expanded_words(words: list[str], values: Mapping[str, str]) -> list[str]:
    """Return *words* expanded; a variable alone that holds options gives several, as without quotes."""
    found: list[str] = []
    for word in words:
        if _ARGUMENTS.fullmatch(word):  # the script's own arguments, which the text does not hold
            continue
        whole = expanded(word, values)
        several = _USE.fullmatch(word) and (not whole or re.search(r"(?:^|\s)--?[A-Za-z]", whole))
        found += shlex.split(whole) if several else [whole]
    return found


def _of_words(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[ServeCommand]:
    """Yield the server that one command starts; nothing for another command."""
    environment = dict(environment)
    while words and (
        (found := _VARIABLE.fullmatch(words[0])) or words[0] in {"sudo", "exec", "nohup", "env", "-E", "-i"}
    ):
        if found:
            environment[found[1]] = found[3]
        words = words[1:]
    if not words or words[0] in _SHOWS:
        return
    names = [word.rpartition("/")[2] for word in words]
    if names[0] in {"docker", "podman"} and "run" in words:
        yield from _of_container(words[words.index("run") + 1 :])
        return
    if names[0] in {"bash", "sh"}:
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        yield from commands_of_script(script, environment)
        return
    for at, (word, name) in enumerate(zip(words, names, strict=True)):
        if name == "vllm" and words[at + 1 : at + 2] == ["serve"]:
            yield ServeCommand(list(words[at + 2 :]), environment)
            return
        if _SERVER.fullmatch(word):
            rest = list(words[at + 1 :])
            yield ServeCommand(rest[1:] if rest[:1] == ["serve"] else rest, environment)
            return


def _of_container(words: Sequence[str]) -> Iterator[ServeCommand]:
    """Yield the server of a ``docker run`` line, from behind ``run`` on."""
    environment, mounts, unused = dict[str, str](), dict[str, str](), list[str]()
    remarks: list[Remark] = []
    entry: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, value = _docker_option(rest)
        match option:
            case "-e" | "--env":
                environment |= dict([assigned(value)])
            case "-v" | "--volume":
                mounts |= dict([mount_of(value)])
            case "--entrypoint":
                entry = shlex.split(value)
            case "--env-file":
                remarks.append(Remark("left out", f"--env-file {value}", UNREAD))
            case _:
                unused.append(option)  # its value may be a secret
    if "--privileged" in unused:
        remarks.append(Remark("dangerous", "--privileged", "the container owns the machine"))
    if unused:
        why = "a recipe is served without a container, or by the image that ci/image.sh builds"
        remarks.append(Remark("left out", ", ".join(dict.fromkeys(unused)), why))
    for one in commands_of_image(rest[0], entry, rest[1:], environment, mounts) if rest else ():
        one.remarks += remarks
        yield one


def _docker_option(rest: list[str]) -> tuple[str, str]:
    """Take an option of ``docker run`` and its value, if it has one, from the front of *rest*."""
    option, equals, value = rest.pop(0).partition("=")
    if re.match(r"-[evpu].", option):  # a short option with its value
        return option[:2], f"{option[2:]}{equals}{value}"
    alone = option in _ALONE or re.fullmatch(r"-[dit]+", option)
    if not equals and not alone and rest:
        value = rest.pop(0)
    return option, value


def commands_of_image(
    image: str,
    entry: Sequence[str],
    words: Sequence[str],
    environment: Mapping[str, str],
    mounts: Mapping[str, str],
) -> Iterator[ServeCommand]:
    """Yield the server that *image* runs with the command *words*, behind *entry* in place of its own."""
    found = list(_of_words([*entry, *words], environment))
    server = _SERVER_IMAGE.search(image) or any(map(_OF_VLLM.match, words))
    if not found and not entry and words and server and _ARGUMENT.match(words[0]):
        found = [ServeCommand(list(words), dict(environment))]
    for one in found:
        one.mounts, one.contained = dict(mounts), True
        one.remarks += [
            Remark("left out", source, "a patched file of vLLM: write a carry")
            for place, source in mounts.items()
            if _PACKAGES.search(place)
        ]
        one.remarks.append(Remark("left out", image, "the wheel is served, not the vLLM of an image"))
        yield one


def mount_of(text: str) -> tuple[str, str]:
    """Return the place in the container and the host's folder of a volume."""
    source, _, place = text.partition(":")
    return place.partition(":")[0], source


def written(value: Any) -> str:
    """Return a value of YAML as a command line has it; nothing for null."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
