"""Write ``carries/<name>/``, with tomlkit so that people's comments and order stay; read pull requests."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sparkwright.base.errors import ConfigError, FetchError, UnknownNameError
from sparkwright.carries.model import CARRY_FORMAT, NAME_PATTERN, Carry, PullRequest, load_carry
from sparkwright.carries.patch import parse_patch
from sparkwright.git.remotes import check_ref, fetch, list_remote
from sparkwright.git.repository import open_repository
from sparkwright.lock.model import Lock
from sparkwright.store.disk import remove_tree, storing, write_atomically
from sparkwright.store.paths import Store

_PROBE_FILE = "probe.py"
_PROBE = '''\
"""Show the defect that {name} repairs: fail on the pristine tree and pass on the merged one."""

from probekit import expect
{imports}

def probe() -> None:
    """Say what healthy code does, and a control."""
    expect(False, "this probe is a skeleton: state what healthy code does instead, and a control")
'''


@dataclass(frozen=True)
class Draft:
    """The texts of a new carry; fields that are not known yet say so."""

    name: str
    title: str
    why: str
    symptom: str = "Not described yet."
    drop_when: str = "Not decided yet."
    runner: str = "both"
    requires: tuple[str, ...] = ()


def create_own(root: Path, draft: Draft, lock: Lock, patch: bytes) -> Carry:
    """Write a new carry of our own with one revision, against the pin."""
    changed = parse_patch(patch, name=draft.name).files
    release, sdist = lock.release.version, lock.required_sdist()
    revision = {"release": release, "sdist-sha256": sdist.sha256, "patch": f"{release}.patch"}
    tables = {**_common(draft, "own"), "revision": [revision]}
    kept = [file.path for file in changed if file.old and file.new]
    return _create(root, draft.name, tables, kept, {revision["patch"]: patch})


def create_pull(root: Path, draft: Draft, pull: ResolvedPull, paths: Sequence[str]) -> Carry:
    """Write a new carry that is a pull request which changes *paths*, pinned by head and base."""
    upstream = {
        "pull": pull.pin.number,
        "author": pull.author,
        "state": "open",
        "relation": "this carry is that pull request",
    }
    pinned = {
        "repository": pull.pin.repository,
        "number": pull.pin.number,
        "head": pull.pin.head,
        "base": pull.pin.base,
        **({"branch": pull.pin.branch} if pull.pin.branch else {}),
    }
    tables = {**_common(draft, "pull"), "upstream": [upstream], "pull": pinned}
    return _create(root, draft.name, tables, paths, {})


def _common(draft: Draft, kind: str) -> dict[str, Any]:
    return {
        "format": CARRY_FORMAT,
        "name": draft.name,
        "title": draft.title,
        "kind": kind,
        "scope": "runtime",
        "runner": draft.runner,
        "requires": list(draft.requires),
        "why": f"{draft.why.strip()}\n",
        "symptom": f"{draft.symptom.strip()}\n",
        "drop-when": f"{draft.drop_when.strip()}\n",
        "evidence": {"level": "claimed", "demonstrated": [], "claimed": ["Nothing was reproduced here yet."]},
        "probe": {"file": _PROBE_FILE},
    }


def _create(
    root: Path, name: str, tables: dict[str, Any], paths: Sequence[str], files: dict[str, bytes]
) -> Carry:
    """Write the folder of a carry with the skeleton of a probe; it appears whole and valid, or not at all."""
    import tomlkit

    if not re.match(NAME_PATTERN, name):
        raise UnknownNameError(
            f"{name!r} cannot be a carry's name",
            because="it is also a folder's and takes lower-case letters, digits and single hyphens",
            next_step="choose a name such as uma-clamp",
        )
    folder = root / name
    if folder.exists():
        raise ConfigError(
            f"carry {name!r} cannot be made",
            because=f"{folder} exists",
            next_step=f"choose another name, or 'sparkwright carry refresh {name}'",
        )
    document = tomlkit.document()
    for key, value in tables.items():
        multiline = isinstance(value, str) and value.endswith("\n")
        document[key] = tomlkit.string(value, multiline=True) if multiline else value
    modules = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
               for path in paths if path.startswith("vllm/") and path.endswith(".py")]  # fmt: skip
    imports = "".join(f"import {module}  # noqa: F401\n" for module in sorted(modules))
    files |= {_PROBE_FILE: _PROBE.format(name=name, imports=imports).encode()}
    with storing(f"making carry {name}"):
        root.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
        try:
            (part / name).mkdir()
            for file, data in files.items():
                (part / name / file).write_bytes(data)
            (part / name / "carry.toml").write_text(tomlkit.dumps(document), encoding="utf-8")
            load_carry(part / name)
            (part / name).rename(folder)
        finally:
            remove_tree(part)
    return load_carry(folder)


def add_revision(carry: Carry, lock: Lock, patch: bytes) -> Carry:
    """Record *patch* as the carry's revision against the pin, replacing one for the same release."""
    parse_patch(patch, name=carry.name)
    with _edited(carry) as document:
        release, revisions = lock.release.version, document["revision"]
        table = next((one for one in revisions if one["release"] == release), None)
        name = f"{release}.patch" if table is None else str(table["patch"])
        if table is None:
            revisions.append({})
            table = revisions[-1]
        table.update({"release": release, "sdist-sha256": lock.required_sdist().sha256, "patch": name})
        write_atomically(carry.folder / name, patch)
    return load_carry(carry.folder)


def repin(carry: Carry, pull: ResolvedPull) -> Carry:
    """Pin the pull request of *carry* at what it is now."""
    with _edited(carry) as document:
        document["pull"].update({"head": pull.pin.head, "base": pull.pin.base})
    return load_carry(carry.folder)


def declare_superseded(carry: Carry, *, releases: str, by: str, because: str) -> Carry:
    """Record that *releases* have an answer of their own to the defect of *carry*."""
    import tomlkit

    with _edited(carry) as document:
        entries = document.setdefault("superseded", tomlkit.aot())
        entries.append({"releases": releases, "by": by, "because": because})
    return load_carry(carry.folder)


@contextlib.contextmanager
def _edited(carry: Carry) -> Iterator[Any]:
    """Give the document of ``carry.toml``, and write it after the block; comments stay."""
    import tomlkit

    path = carry.folder / "carry.toml"
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    with storing(f"writing {carry.folder}"):
        yield document
        write_atomically(path, tomlkit.dumps(document).encode())


# A carry from a pull request ----------------------------------------------------------------------


@dataclass(frozen=True)
class ResolvedPull:
    """A pull request as it is now."""

    pin: PullRequest
    author: str
    subjects: tuple[str, ...]
    message: str


class PullName(NamedTuple):
    """A pull request as a user names it: its number, and its repository if given."""

    number: int
    repository: str = ""


_PULL = re.compile(
    r"(?:(?P<repository>(?:https|ssh|file)://[^\s?#]+)/pull/|#)?(?P<number>[0-9]{1,9})(?:[/?#]\S*)?"
)


_COMMIT = re.compile(r"[0-9a-f]{40}")


def parse_pull(text: str) -> PullName:
    """Return what ``45544``, ``#45544`` or the address of a pull request names."""
    found = _PULL.fullmatch(text.strip())
    if found is None or int(found["number"]) == 0:
        raise UnknownNameError(
            f"{text!r} does not name a pull request",
            next_step="give its number, such as 45544, or its whole address",
        )
    return PullName(int(found["number"]), found["repository"] or "")


def _names_of(branch: str) -> list[str]:
    """Return the full names of the refs that *branch* may stand for, the first one before the others."""
    if not branch:
        return ["HEAD"]
    if _COMMIT.fullmatch(branch):
        return []
    full = [branch] if branch.startswith("refs/") else [f"refs/heads/{branch}", f"refs/tags/{branch}"]
    return [check_ref(name) for name in full]


def resolve_pull(store: Store, address: str, number: int, *, branch: str = "") -> ResolvedPull:
    """Ask the remote for pull request *number* and find its merge base with the branch that it is against.

    History alone is fetched, into a scratch repository, so that the store keeps no half objects.

    *branch* is a branch, a tag or a commit; the default branch if empty.
    """
    shown = branch or "the default branch"
    with store.scratch() as scratch:
        history = open_repository(scratch / "history")
        head_ref = f"refs/pull/{number}/head"
        against = _names_of(branch)
        refs = list_remote(history, address, [head_ref, *against])
        if head_ref not in refs or (not branch and "HEAD" not in refs):
            raise FetchError(
                f"{address} has no pull request {number}",
                because=f"it lists no {head_ref}",
                next_step="check the number and the address",
            )
        head = refs[head_ref].commit
        main = next((refs[name].commit for name in against if name in refs), branch)
        if main == branch and not _COMMIT.fullmatch(branch):
            raise FetchError(
                f"{address} has no {branch!r}",
                because="it lists no branch and no tag of that name",
                next_step="give the branch that the pull request is against, or a commit's 40 digits",
            )
        fetch(history, address, [head_ref, main], depth=None, filter_="tree:0")
        done = history.command("merge-base", main, head, accept=(0, 1))
        if done.status:
            raise FetchError(
                f"pull request {number} cannot be pinned", because=f"it shares no history with {shown}"
            )
        base = done.text
        # NUL is the one byte that no message can hold.
        log = history.command("log", "--reverse", "-z", "--format=%an%x00%s%x00%B", f"{base}..{head}").stdout
    fields = log.decode(errors="replace").split("\0")
    commits = list(zip(fields[0::3], fields[1::3], fields[2::3], strict=False))
    if not commits:
        raise FetchError(
            f"pull request {number} cannot be pinned",
            because=f"its head is already in {shown}",
            next_step="a release made after that has it; an older pin needs a carry of your own",
        )
    return ResolvedPull(
        PullRequest(repository=address, number=number, head=head, base=base, branch=branch),
        author=commits[-1][0],
        subjects=tuple(commit[1] for commit in commits),
        message=commits[0][2].strip(),
    )
