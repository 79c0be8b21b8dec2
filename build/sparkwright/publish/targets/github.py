"""GitHub as a target: wheels are assets of one release, everything else files of the branch of its Pages.

All calls go through ``gh``, which has the token: it is in no argument. Pages' files are replaced by the
API for contents, which takes the blob id of the present file and refuses another one. Wheels are sent
whole: the API continues no upload.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.errors import LostRaceError, ProcessError, UploadError
from sparkwright.base.process import run, which
from sparkwright.publish.target import Stored, checked_path, is_hidden, lost_race, require_digest
from sparkwright.upstream.network import InterruptedFetch, retrying
from sparkwright.upstream.settings import IndexSettings

T = TypeVar("T")

_MOST_ASSET_BYTES = 2 << 30
_MOST_ASSETS = 1000
_LEAST_BYTES_PER_S = 50_000  # a slower transfer is given up
_PASSING = (
    "HTTP 500",
    "HTTP 502",
    "HTTP 503",
    "HTTP 504",
    "connection reset",
    "i/o timeout",
    "unexpected EOF",
)
_ABSENT = ("HTTP 404", "release not found")
_CHANGED = ("HTTP 409", "HTTP 422")
_NOT_SIGNED_IN = ("HTTP 401", "HTTP 403", "gh auth login")


@dataclass(frozen=True)
class GithubTarget:
    """A repository's release and Pages; the tag of a page is its blob id, that of a wheel its SHA-256.

    Attributes:
        release: tag of the release whose assets are the wheels.
        branch: the branch that Pages serves, from its root.
        public: address of the Pages, if they have a domain of their own.
        downloads: address of the web site, which has the releases.
        settings: tries, and seconds after which a call that transfers nothing large is given up.
    """

    owner: str
    repository: str
    release: str = "wheels"
    branch: str = "gh-pages"
    public: str = ""
    downloads: str = "https://github.com"
    settings: IndexSettings = field(default_factory=IndexSettings, repr=False)

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""
        if _is_asset(checked_path(path)):
            if (asset := self._asset(path)) is None:
                return None
            data = self._downloaded(asset, Path.read_bytes)
            return Stored(data, sha256_bytes(data))
        page = self._page(path)
        if page is None:
            return None
        # Contents have the bytes of files up to 1 MB, blobs up to 100 MB.
        content = page["content"] or self._json("api", f"{self._api}/git/blobs/{page['sha']}")["content"]
        return Stored(base64.b64decode(content), page["sha"])

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """See `Target.put_file`; a wheel that was cut off is sent again from its start.

        Raises:
            UploadError: it is larger than GitHub takes, or the release is full.
        """
        size = file.stat().st_size
        if size >= _MOST_ASSET_BYTES:
            raise UploadError(
                f"{path} was not published",
                because=f"it has {size} bytes, and GitHub takes less than 2 GiB",
                next_step="publish to another kind of target",
            )
        require_digest(str(file), sha256_file(file), sha256)
        if _is_asset(checked_path(path)):
            self._put_asset(path, file, sha256)
            return
        with contextlib.suppress(LostRaceError):
            self.replace(path, file.read_bytes(), expected=None)
        found = self.read(path)
        require_digest(self.url(path), sha256_bytes(found.data) if found else "missing", sha256)

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`."""
        body = {
            "message": f"Publish {checked_path(path)}",
            "content": base64.b64encode(data).decode(),
            "branch": self.branch,
        } | ({"sha": expected} if expected is not None else {})
        command = ("api", "--method", "PUT", f"{self._api}/contents/{quote(path)}", "--input", "-")

        def once() -> str:
            try:
                answer = self._call(*command, stdin=json.dumps(body).encode())
            except UploadError as error:
                if not any(status in error.because for status in _CHANGED):
                    raise
                found = self.read(path)
                if found is not None and found.data == data:
                    return found.tag  # the answer to a first try was lost
                if (found.tag if found else None) == expected:
                    raise InterruptedFetch("another file of the branch changed meanwhile") from error
                raise lost_race(path, self._shown) from error
            return str(json.loads(answer)["content"]["sha"])

        return self._retried(f"writing {path}", once)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Target.sizes`."""
        start = checked_path(prefix.rstrip("/")) + "/" if prefix else ""
        answer = self._find("api", f"{self._api}/git/trees/{quote(self.branch, safe='')}?recursive=1")
        tree = json.loads(answer) if answer else {}
        if tree.get("truncated"):
            raise UploadError(
                f"the files of {self._shown} were not listed", because="the branch has too many"
            )
        found = {entry["path"]: entry["size"] for entry in tree.get("tree", ()) if entry["type"] == "blob"}
        found |= {asset["label"] or asset["name"]: asset["size"] for asset in self._assets()}
        return {path: size for path, size in found.items() if path.startswith(start) and not is_hidden(path)}

    def remove(self, path: str) -> None:
        """See `Target.remove`; of assets, one whose label is *path*: another wheel may have its name."""
        if _is_asset(checked_path(path)):
            if any(asset["name"] == _name(path) and asset["label"] == path for asset in self._assets()):
                where = ("--yes", "--repo", self._name)
                self._call("release", "delete-asset", self.release, _name(path), *where)
            return
        page = self._page(path)
        if page is not None:
            body = {"message": f"Remove {path}", "sha": page["sha"], "branch": self.branch}
            command = ("api", "--method", "DELETE", f"{self._api}/contents/{quote(path)}", "--input", "-")
            self._call(*command, stdin=json.dumps(body).encode())

    def url(self, path: str) -> str:
        """See `Target.url`."""
        if _is_asset(path):
            repository = f"{self.downloads}/{self.owner}/{self.repository}"
            return (
                f"{repository}/releases/download/{quote(self.release, safe='')}/{quote(_name(path), safe='')}"
            )
        pages = self.public or f"https://{self.owner.lower()}.github.io/{self.repository}"
        return f"{pages}/{quote(path, safe='/')}"

    def elsewhere(self, path: str) -> str:
        """See `Target.elsewhere`: assets are not on the host of Pages."""
        return self.url(path) if _is_asset(path) else ""

    # Pages and assets ------------------------------------------------------------------------------------

    def _page(self, path: str) -> dict[str, Any] | None:
        answer = self._find("api", f"{self._api}/contents/{quote(path)}?ref={quote(self.branch, safe='')}")
        page = json.loads(answer) if answer else None
        return page if isinstance(page, dict) else None  # a list describes a folder

    def _assets(self) -> tuple[dict[str, Any], ...]:
        """Return the release's assets that are complete or were interrupted; none if there is no release."""
        found = self._find("api", f"{self._api}/releases/tags/{quote(self.release, safe='')}")
        if found is None:
            return ()
        pages = self._call(
            "api", "--paginate", f"{self._api}/releases/{json.loads(found)['id']}/assets?per_page=100"
        )
        return tuple(_concatenated(pages))

    def _asset(self, path: str) -> dict[str, Any] | None:
        named = (asset for asset in self._assets() if asset["name"] == _name(path))
        return next((asset for asset in named if asset["state"] == "uploaded"), None)

    def _put_asset(self, path: str, file: Path, sha256: str) -> None:
        assets = self._assets()
        same = next((asset for asset in assets if asset["name"] == _name(path)), None)
        if same is not None and same["state"] == "uploaded":
            require_digest(self.url(path), self._stated(same) or self._downloaded(same, sha256_file), sha256)
            return
        if same is not None:  # of an upload that was cut off; it would block this one
            self._call("release", "delete-asset", self.release, same["name"], "--yes", "--repo", self._name)
        elif len(assets) >= _MOST_ASSETS:
            raise UploadError(
                f"{path} was not published",
                because=f"the release {self.release} has {_MOST_ASSETS} assets, the most",
                next_step="name another release in the address: ?release=NAME",
            )  # fmt: skip
        self._send(path, file)
        sent = self._asset(path)
        require_digest(self.url(path), self._downloaded(sent, sha256_file) if sent else "missing", sha256)

    def _send(self, path: str, file: Path) -> None:
        where = ("--repo", self._name)
        if self._find("api", f"{self._api}/releases/tags/{quote(self.release, safe='')}") is None:
            notes = "Wheels; their index is on this repository's Pages."
            self._call("release", "create", self.release, "--title", self.release, "--notes", notes, *where)
        with tempfile.TemporaryDirectory(prefix="sparkwright-") as scratch:
            # gh names an asset after its file, and takes what follows # as the label.
            link = Path(scratch, _name(path))
            link.symlink_to(file.absolute())
            upload, size = ("release", "upload", self.release, f"{link}#{path}"), file.stat().st_size
            try:
                self._call(*upload, *where, bytes_moved=size)
            except UploadError as error:
                if "already exists" not in error.because:
                    raise  # else another publisher was faster; the digest decides

    def _stated(self, asset: dict[str, Any]) -> str:
        """Return the SHA-256 that GitHub states for *asset*, empty if it states none."""
        return str(asset.get("digest") or "").removeprefix("sha256:")

    def _downloaded(self, asset: dict[str, Any], consume: Callable[[Path], T]) -> T:
        """Return the result of *consume* for a downloaded copy of *asset*."""
        with tempfile.TemporaryDirectory(prefix="sparkwright-") as scratch:
            name = asset["name"]
            where = ("--pattern", name, "--dir", scratch, "--repo", self._name)
            self._call("release", "download", self.release, *where, bytes_moved=asset["size"])
            return consume(Path(scratch, name))

    # Calls of gh -----------------------------------------------------------------------------------------

    def _json(self, *arguments: str) -> Any:
        return json.loads(self._call(*arguments))

    def _find(self, *arguments: str) -> bytes | None:
        """Return the output of ``gh``, `None` if what it was asked for does not exist."""
        try:
            return self._call(*arguments)
        except UploadError as error:
            if any(text in error.because for text in _ABSENT):
                return None
            raise

    def _call(self, *arguments: str, stdin: bytes | None = None, bytes_moved: int = 0) -> bytes:
        """Return the output of ``gh``, called again after a failure that may pass.

        Raises:
            ToolError: it is not installed.
            UploadError: it failed, or took too long.
        """
        program = which("gh", hint="install GitHub's command line tool, then run: gh auth login")
        patience = self.settings.timeout_s + bytes_moved / _LEAST_BYTES_PER_S
        environment = {**os.environ, "GH_PROMPT_DISABLED": "1"}

        def once() -> bytes:
            try:
                return run((program, *arguments), stdin=stdin, timeout=patience, env=environment).stdout
            except ProcessError as error:
                if any(text in error.because for text in _PASSING):
                    raise InterruptedFetch(error.because) from error
                raise self._failed(" ".join(arguments[:2]), error.because) from error

        return self._retried(f"gh {' '.join(arguments[:2])}", once)

    def _retried(self, what: str, once: Callable[[], T]) -> T:
        try:
            return retrying(self.settings, what)(once)
        except InterruptedFetch as error:
            raise self._failed(what, str(error)) from error

    def _failed(self, what: str, because: str) -> UploadError:
        step = "check the repository's name and the network; the same command resumes"
        if any(text in because for text in _NOT_SIGNED_IN):
            step = "run gh auth login, or set GH_TOKEN to a token that may write contents"
        return UploadError(f"{what} for {self._shown} failed", because=because, next_step=step)

    @property
    def _name(self) -> str:
        return f"{self.owner}/{self.repository}"

    @property
    def _shown(self) -> str:
        return f"github://{self._name}"

    @property
    def _api(self) -> str:
        return f"repos/{self._name}"


def _is_asset(path: str) -> bool:
    """Return if *path* is a wheel, which is too large for a branch, or METADATA, which belongs beside it."""
    return path.endswith((".whl", ".whl.metadata"))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _concatenated(pages: bytes) -> Iterator[dict[str, Any]]:
    """Yield the entries of lists that follow each other, as ``gh api --paginate`` prints them."""
    decoder, text = json.JSONDecoder(), pages.decode().strip()
    while text:
        entries, end = decoder.raw_decode(text)
        yield from entries
        text = text[end:].lstrip()
