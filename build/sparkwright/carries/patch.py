"""A revision's patch: parsed strictly, and applied to exactly the blobs that it names.

Patches are unified diffs without context lines and with full blob ids (``-U0
--full-index``). There is no fuzz and no offset: the old blob must be the one named, and the
result must hash to the new one, or the patch is refused. Moving a change to another base
is the merge's work, never the patch's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from sparkwright.base.errors import PatchError
from sparkwright.git.trees import blob_id

_ABSENT = "0" * 40
_INDEX = re.compile(r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (\d{6}))?$", re.MULTILINE)
_CREATED = re.compile(r"^(?:new|deleted) file mode (\d{6})$", re.MULTILINE)
_UNSUPPORTED = re.compile(
    r"^(?:GIT binary patch|Binary files [^\n]*|rename (?:from|to) |copy (?:from|to) |(?:old|new) mode )",
    re.MULTILINE,
)
_NO_NEWLINE = "\\"


@dataclass(frozen=True)
class Hunk:
    """Lines to take out and put in, each with its line end.

    Attributes:
        start: number of the first old line, from 1; for a pure addition the line it follows.
    """

    start: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


@dataclass(frozen=True)
class FilePatch:
    """The change to one file.

    Attributes:
        old: id of the blob that it was written for; `None` for a new file.
        new: id of the blob that results; `None` for a deleted file.
    """

    path: str
    old: str | None
    new: str | None
    mode: str
    hunks: tuple[Hunk, ...]

    def apply(self, data: bytes) -> bytes:
        """Return the patched form of *data*.

        Raises:
            PatchError: *data* is not the blob that the patch was written for, or the result
                is not the one that it promises.
        """
        if self.old is not None and blob_id(data) != self.old:
            raise PatchError(
                f"the patch for {self.path} does not fit",
                because=f"it was written for blob {self.old[:12]}, and this is {blob_id(data)[:12]}",
                next_step="merge it from its own base instead, or refresh the carry",
            )
        old_lines = data.splitlines(keepends=True) if b"\r" not in data else _split(data)
        result: list[bytes] = []
        position = 0
        for hunk in self.hunks:
            start = hunk.start - 1 if hunk.removed else hunk.start
            if start < position or tuple(old_lines[start : start + len(hunk.removed)]) != hunk.removed:
                raise PatchError(
                    f"the patch for {self.path} is damaged",
                    because=f"the lines that it removes at {hunk.start} are not there",
                )
            result += old_lines[position:start]
            result += hunk.added
            position = start + len(hunk.removed)
        result += old_lines[position:]
        patched = b"".join(result)
        if self.new is None and patched:
            raise PatchError(
                f"the patch for {self.path} is damaged", because="it deletes a file without all of its lines"
            )
        if self.new is not None and blob_id(patched) != self.new:
            raise PatchError(
                f"the patch for {self.path} is damaged",
                because=f"its result is blob {blob_id(patched)[:12]}, not the promised {self.new[:12]}",
            )
        return patched


def _split(data: bytes) -> list[bytes]:
    """Return lines of *data* as git counts them: ended by a line feed alone."""
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


@dataclass(frozen=True)
class Patch:
    """A parsed patch; `files` in the order of the text."""

    name: str
    files: tuple[FilePatch, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Return paths that it changes."""
        return tuple(file.path for file in self.files)

    @property
    def lines(self) -> int:
        """Return the number of lines that it removes and adds."""
        return sum(len(hunk.removed) + len(hunk.added) for file in self.files for hunk in file.hunks)

    def apply(self, read: Callable[[str], bytes | None]) -> dict[str, tuple[str, bytes] | None]:
        """Apply all files; *read* gives a path's old bytes, or `None` where there is none.

        Returns:
            path to (mode, new bytes), or `None` for a deleted file.
        """
        results: dict[str, tuple[str, bytes] | None] = {}
        for file in self.files:
            old = read(file.path)
            if (old is None) != (file.old is None):
                raise PatchError(
                    f"{self.name} does not fit",
                    because=f"{file.path} {'is missing' if old is None else 'exists already'} in its base",
                )
            patched = file.apply(old or b"")
            results[file.path] = None if file.new is None else (file.mode, patched)
        return results


def parse_patch(text: bytes, *, name: str) -> Patch:
    """Parse a ``-U0 --full-index`` patch.

    Raises:
        PatchError: it has context lines, short blob ids, binary parts, renames, mode changes,
            paths outside the tree, or is not a patch.
    """
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    decoded = text.decode(errors="surrogateescape")
    if found := _UNSUPPORTED.search(decoded):
        raise PatchError(
            f"{name} is not a patch that we take",
            because=f"it has a line {found[0].strip()!r}" + _place(decoded, found.start()),
            next_step="express renames and mode changes as added and deleted files; no binary files",
        )
    try:
        parsed = PatchSet.from_string(decoded)
    except UnidiffParseError as error:
        raise PatchError(f"{name} is not a unified diff", because=str(error)) from error
    if not parsed:
        raise PatchError(f"{name} is not a patch", because="it changes nothing")
    files = tuple(_file(entry, name) for entry in parsed)
    if len({file.path for file in files}) != len(files):
        raise PatchError(f"{name} is damaged", because="it changes one file twice")
    return Patch(name, files)


def _place(text: str, position: int) -> str:
    """Return the file whose change the line of *text* at *position* is part of, for a message."""
    header = re.findall(r"^diff --git a/(.+) b/\1$", text[:position], re.MULTILINE)
    return f" for {header[-1]}" if header else ""


def _file(entry: object, name: str) -> FilePatch:
    header = "".join(getattr(entry, "patch_info", None) or ())
    index = _INDEX.search(header)
    created = _CREATED.search(header)
    if index is None:
        raise PatchError(
            f"{name} does not say which blobs it was written for",
            because="a file has no 'index' line with two full blob ids",
            next_step="write it with: git diff -U0 --full-index --no-renames",
        )
    mode = index[3] or (created[1] if created else "")
    if mode not in {"100644", "100755"}:
        raise PatchError(f"{name} is not a patch that we take", because=f"it changes a file of mode {mode!r}")
    old = None if index[1] == _ABSENT else index[1]
    new = None if index[2] == _ABSENT else index[2]
    source, target = str(getattr(entry, "source_file", "")), str(getattr(entry, "target_file", ""))
    path = _path(target if new else source, "b/" if new else "a/", name)
    if old and new and _path(source, "a/", name) != path:
        raise PatchError(f"{name} is not a patch that we take", because=f"it renames {source} to {target}")
    hunks = tuple(_hunk(hunk, name, path) for hunk in entry)  # type: ignore[attr-defined]
    return FilePatch(path, old, new, mode, hunks)


def _path(raw: str, prefix: str, name: str) -> str:
    path = raw.removeprefix(prefix)
    parts = PurePosixPath(path).parts
    unsafe = (
        not raw.startswith(prefix)
        or path.startswith(("/", '"'))
        or not parts
        or any(part in {"..", ".git"} for part in parts)
        or any(character in path for character in "\0\\\n")
        or str(PurePosixPath(path)) != path
    )
    if unsafe:
        raise PatchError(f"{name} reaches outside the tree", because=f"it names the path {raw!r}")
    return path


def _hunk(hunk: object, name: str, path: str) -> Hunk:
    removed: list[bytes] = []
    added: list[bytes] = []
    last: list[bytes] | None = None
    for line in hunk:  # type: ignore[attr-defined]
        if line.line_type == _NO_NEWLINE:
            if last:
                last[-1] = last[-1].removesuffix(b"\n")
            continue
        if line.is_context:
            raise PatchError(
                f"{name} has context lines",
                because=f"a hunk of {path} shows unchanged lines of upstream's",
                next_step="write it with: git diff -U0 --full-index --no-renames",
            )
        last = removed if line.is_removed else added
        last.append(line.value.encode(errors="surrogateescape"))
    return Hunk(int(getattr(hunk, "source_start", 0)), tuple(removed), tuple(added))
