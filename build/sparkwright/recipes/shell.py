"""Text of shell scripts, and of systemd units: its commands, and the variables in them. Nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*[\"']?(\w+)")
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
# A variable by its name, or in braces with [@], and with what stands for it where it has no value.
_USE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(\[[@*]\])?(?:(:?[-=?+])((?:[^{}]|\{[^{}]*\})*))?\})")
_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*][^}]*\})")
UNKNOWN = re.compile(r"\$[\w{(@*]|`")  # a value that the text does not hold
# What a systemd unit says of its server, without the signs that change how it is started.
_UNIT = re.compile(r"^(Environment|EnvironmentFile|ExecStart)[ \t]*=[ \t]*[-@:+!]*(.*)$", re.MULTILINE)


def script_of_unit(text: str) -> str:
    """Return what a systemd unit runs as a script; any other text as it is."""
    if not re.search(r"^ExecStart[ \t]*=", text, re.MULTILINE):
        return text
    whole = re.sub(r"\\[ \t]*\n(?:[ \t]*[#;].*\n)*", " ", text)
    words = {"Environment": "export ", "EnvironmentFile": "source ", "ExecStart": ""}
    return "\n".join(words[name] + value for name, value in _UNIT.findall(whole)).replace("%h/", "$HOME/")


def logical_lines(text: str) -> Iterator[str]:
    """Yield the commands of a script, also behind ``&``, ``&&`` and in parentheses; arrays stay whole."""
    text = _without_heredocs(text)
    lines = text.split("\n")
    lines = [
        line.rstrip("\\ \t\r") if line.lstrip().startswith("#") else line for line in lines
    ]  # not continued
    text = "\n".join(map(_continued, lines))
    whole, quoted = re.sub(r"\\[ \t]*\r?\n", " ", text), ""
    line, comment, depth = "", False, 0
    for at, sign in enumerate(whole):
        comment = sign != "\n" and (
            comment or (sign == "#" and not quoted and whole[at - 1 : at].strip() in {"", ";"})
        )
        if comment:
            continue
        if quoted:
            quoted = "" if sign == quoted else quoted
        elif sign in "\"'":
            quoted = sign
        elif depth or (sign == "(" and whole[at - 1 : at] in {"=", "$"}):  # an array, or another's output
            depth += (sign == "(") - (sign == ")")
        elif sign in ";\n()" or (
            sign == "&" and whole[at - 1 : at] not in {"<", ">", "|"} and whole[at + 1 : at + 2] != ">"
        ):
            if line.strip():
                yield line.strip()
            line = ""
            continue
        line += sign
    if line.strip():
        yield line.strip()


def _without_heredocs(text: str) -> str:
    """Return *text* without the files that are written in it."""
    lines = text.split("\n")
    ends, end = {line.strip() for line in lines}, ""
    kept = []
    for line in lines:
        if end:
            end = "" if line.strip() == end else end
            continue
        found = _HEREDOC.search(line)
        end = found[1] if found and found[1] in ends else ""
        kept.append(line[: found.start()] if found and end else line)
    return "\n".join(kept)


def _continued(line: str) -> str:
    """Return *line* without a comment beside its last backslash.

    A shell ends the command at such a comment, but its author meant it to go on with the next line.
    """
    line = re.sub(r"\\[ \t]+#.*$", r"\\", line)
    at = line.find(" #", max(line.rfind("'"), line.rfind('"')) + 1)
    return f"{line[:at]} \\" if line.rstrip().endswith("\\") and at > 0 and line[:at].strip() else line


def split_words(line: str) -> list[str]:
    """Return the words of a command; the output of another one of several words is ``$(…)``.

    Raises:
        ValueError: a quotation has no end.
    """
    whole = _OUTPUT.sub(lambda found: "$(…)" if re.search(r"[\s'\"\\]", found[0]) else found[0], line)
    return shlex.split(whole)


def conditional(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield each of *lines*, and if no condition decides whether it is run.

    A default that ``:`` sets is an assignment.
    """
    depth, tested = 0, False
    for line in lines:
        first = line.split(maxsplit=1)[0]
        depth += (first in {"if", "case"}) - (first in {"fi", "esac"})
        sure = not depth and not tested
        tested = first in {"[", "[[", "test"}
        if first == ":":
            found = [one for one in _USE.finditer(line) if (one[4] or "").endswith("=")]
            yield from ((f"{one[2]}={shlex.quote(one[5])}", False) for one in found)
        else:
            yield re.sub(r"^(?:then|else|do)\s+", "", line), sure


def used_names(text: str) -> set[str]:
    """Return the names of variables that *text* uses."""
    return {found[1] or found[2] for found in _USE.finditer(text)}


def expanded(word: str, values: Mapping[str, str]) -> str:
    """Return *word* with shell variables that are known, or have a default, replaced; secrets are not.

    Raises:
        ValueError: it grows beyond any command.
    """

    def value(found: re.Match[str]) -> str:
        name, sign = found[1] or found[2], (found[4] or "")[-1:]
        known = None if SECRET.search(name) else values.get(name)
        if sign == "+":
            return expanded(found[5], values) if known else ""
        if sign in {"-", "="}:
            return known or expanded(found[5], values)
        return found[0] if known is None else known

    whole = _USE.sub(value, word)
    if len(whole) > LONGEST:
        raise ValueError("a variable that grows beyond any command")
    return whole


def expanded_words(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Return *words* expanded; a variable alone that holds options gives several, as without quotes.

    Raises:
        ValueError: they grow beyond any command.
    """
    found: list[str] = []
    length = 0
    for word in words:
        if _ARGUMENTS.fullmatch(word):  # the script's own arguments, which the text does not hold
            continue
        whole, alone = expanded(word, values), _USE.fullmatch(word)
        several = alone and (alone[3] or not whole or re.search(r"(?:^|\s)--?[A-Za-z]", whole))
        found += shlex.split(whole) if several else [whole]
        length += len(whole)
        if length > LONGEST:
            raise ValueError("a variable that grows beyond any command")
    return found
