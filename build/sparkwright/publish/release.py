"""A release on a forge: wheels are its assets, and everything else is a folder that the forge's pages serve.

The folder is a target of channels, the files of a branch. A wheel in it is sent to the release, and leaves a
small file ``FILE.whl.json`` in its place, which says where it is; readers believe that, as they compare the
bytes with the digest that was signed. The index in ``simple/`` is over the wheels that channels offer and the
tool's own. A release is a draft until every asset has its digest, and never changes afterwards. The caller
commits and pushes the folder last; a push that another publisher's came before is refused.

The API is GitHub's; addresses and token are those that its runners set in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from sparkwright.base.config import decode_json, to_builtins
from sparkwright.base.digests import CHUNK, sha256_file, to_json
from sparkwright.base.errors import ConfigError, LostRaceError, PublishError, UploadError
from sparkwright.base.events import emit, task
from sparkwright.publish.channel import channel_names
from sparkwright.publish.index import SIMPLE, PublishedFile, all_pages, describe
from sparkwright.publish.places import RECORD
from sparkwright.publish.repository import read_unverified
from sparkwright.publish.target import FolderTarget, hashed
from sparkwright.store.disk import storing, write_atomically
from sparkwright.upstream.network import (
    IndexSettings,
    RefusedFetchError,
    open_session,
    read_settings,
    reason_of,
    retrying,
)

if TYPE_CHECKING:
    import requests

_TOOL = "tool"
_MOST_ASSET_BYTES = 2 << 30
_PER_PAGE = 100


@dataclass(frozen=True)
class Asset:
    """A file of a release.

    Attributes:
        url: where it is once the release is published.
    """

    name: str
    path: Path
    size: int
    sha256: str
    url: str


@dataclass(frozen=True)
class Released:
    """A wheel that is an asset.

    Attributes:
        url: the address of the asset.
    """

    file: PublishedFile
    url: str


@dataclass(frozen=True)
class Forge:
    """A repository on a forge.

    Attributes:
        repository: its owner and name, as ``OWNER/NAME``.
        api: address of the API.
        web: address of the web site, under which assets are downloaded.
        token: what may write releases; in no argument, address or message.
    """

    repository: str
    api: str
    web: str
    token: str
    settings: IndexSettings

    def url(self, tag: str, name: str) -> str:
        """Return the address of the asset *name* of the release *tag*."""
        return f"{self.web}/{self.repository}/releases/download/{quote(tag, safe='')}/{quote(name, safe='')}"

    def send(self, tag: str, commit: str, assets: Sequence[Asset]) -> None:
        """Publish the release *tag* of *commit* with *assets*; what an interrupted run sent is kept.

        Raises:
            UploadError: the forge cannot be reached, refuses, or stores other bytes.
            PublishError: the release is published, and lacks one of them or has it with other bytes.
            LostRaceError: another publisher makes the same release.
        """
        release = self._release(tag, commit)
        present = {one["name"]: one for one in self._listed(f"releases/{release['id']}/assets")}
        missing = [one for one in assets if not self._is(present.get(one.name), one)]
        if not release["draft"]:
            if missing:
                raise PublishError(
                    f"release {tag} was not changed",
                    because=f"it is published, without {missing[0].name} of SHA-256 {missing[0].sha256}",
                    next_step="use another tag: published releases never change",
                )
            return
        with task(f"send {tag}", total=sum(one.size for one in missing), unit="bytes") as progress:
            for one in missing:
                if one.name in present:  # cut off, or of another build
                    self._call("DELETE", f"releases/assets/{present[one.name]['id']}")
                address = f"{release['upload_url'].partition('{')[0]}?name={quote(one.name, safe='')}"
                sent = self._call("POST", address, file=one.path)
                if not self._is(sent, one):
                    raise UploadError(
                        f"{one.name} was not published",
                        because="the forge stored other bytes than were sent",
                        next_step="run the same command again: it sends that file again",
                    )
                progress.advance(one.size)
        self._call("PATCH", f"releases/{release['id']}", json={"draft": False})
        emit("release.published", tag=tag, assets=len(assets))

    def _release(self, tag: str, commit: str) -> dict[str, Any]:
        """Return the release of *tag*: the published one, the first draft, or a new one."""
        if not (found := self._of(tag)):
            body = {"tag_name": tag, "target_commitish": commit, "name": tag, "draft": True}
            own = self._call("POST", "releases", json=body)
            found = self._of(tag) or [own]
            if found[0]["id"] != own["id"]:  # drafts of one tag may be several
                self._call("DELETE", f"releases/{own['id']}")
                raise LostRaceError(
                    f"release {tag} was not made",
                    because="another publisher made it at the same time",
                    next_step="run the same command again, once that one is done",
                )
        return found[0]

    def _of(self, tag: str) -> list[dict[str, Any]]:
        found = (one for one in self._listed("releases") if one["tag_name"] == tag)
        return sorted(found, key=lambda one: (one["draft"], one["id"]))

    def _is(self, found: Mapping[str, Any] | None, asset: Asset) -> bool:
        """Tell if *found*, an asset as the API describes it, has the digest of *asset*."""
        if not found or found["state"] != "uploaded" or found["size"] != asset.size:
            return False
        if stated := found.get("digest"):
            return bool(stated == f"sha256:{asset.sha256}")
        # A forge that states no digest is asked for the bytes.
        answer = self._answer("GET", f"releases/assets/{found['id']}", stream=True,
                              headers={"Accept": "application/octet-stream"})  # fmt: skip
        with answer:
            return hashed(answer.iter_content(CHUNK), asset.size) == (asset.sha256, asset.size)

    def _listed(self, path: str) -> Iterator[dict[str, Any]]:
        for page in count(1):
            entries = self._call("GET", f"{path}?per_page={_PER_PAGE}&page={page}")
            yield from entries
            if len(entries) < _PER_PAGE:
                return

    def _call(self, method: str, path: str, *, file: Path | None = None, json: Any = None) -> Any:
        """Return the JSON of the answer; *path* is one of the repository's, or an address."""
        headers = {"Content-Type": "application/octet-stream"} if file else {}
        with self._answer(method, path, headers=headers, json=json, file=file) as answer:
            return answer.json() if answer.content else None

    def _answer(
        self, method: str, path: str, *, headers: Mapping[str, str], file: Path | None = None, **options: Any
    ) -> requests.Response:
        """Return the answer; a request that changes nothing, and failed in passing, is sent again."""
        import requests

        address = path if "://" in path else f"{self.api}/repos/{self.repository}/{path}"
        once = method == "POST"  # its answer may be lost: the next run sees what came of it
        try:
            for attempt in retrying(self.settings, path):
                with attempt:
                    body = file.open("rb") if file else None
                    try:
                        answer: requests.Response = self._session.request(
                            method, address, headers=headers, data=body, timeout=self.settings.timeout_s,
                            **options,
                        )  # fmt: skip
                        answer.raise_for_status()
                    except requests.RequestException as error:
                        if once:
                            self._refuse(method, path, error)
                        raise
                    finally:
                        if body:
                            body.close()
                    return answer
        except (requests.RequestException, RefusedFetchError) as error:
            self._refuse(method, path, error)
        raise AssertionError  # retrying raises its last error

    def _refuse(self, method: str, path: str, error: Exception) -> NoReturn:
        answer = getattr(error, "response", None)
        status = answer.status_code if answer is not None else 0
        if status == 422:  # noqa: PLR2004 - GitHub's status for a name that is taken
            raise LostRaceError(
                f"{self.repository} has it already: {path.rpartition('/')[2]}",
                because="another publisher sent it meanwhile",
                next_step="run the same command again, once that one is done",
            ) from error
        step = "check the network; the same command goes on where this one stopped"
        if status in {401, 403, 404}:
            step = "check GITHUB_REPOSITORY, and that the token in GITHUB_TOKEN may write contents"
        raise UploadError(
            f"{method} {path.partition('?')[0]} failed for {self.repository}", because=reason_of(error),
            next_step=step,
        ) from error  # fmt: skip

    @cached_property
    def _session(self) -> requests.Session:
        session = open_session(self.settings)
        session.trust_env = False  # ~/.netrc would replace the token
        session.headers["Accept"] = "application/vnd.github+json"
        session.headers["Authorization"] = f"Bearer {self.token}"
        return session


def read_forge(environment: Mapping[str, str] | None = None) -> Forge:
    """Return the forge that *environment* (ours by default) names, as GitHub's runners do."""
    found = os.environ if environment is None else environment
    repository = found.get("GITHUB_REPOSITORY", "")
    if len([part for part in repository.split("/") if part]) != 2:  # noqa: PLR2004 - owner and name
        raise ConfigError(
            "no repository is named", because=f"GITHUB_REPOSITORY is {repository!r}",
            next_step="set it to OWNER/NAME",
        )  # fmt: skip
    return Forge(
        repository,
        found.get("GITHUB_API_URL") or "https://api.github.com",
        found.get("GITHUB_SERVER_URL") or "https://github.com",
        found.get("GITHUB_TOKEN", ""),
        read_settings(found),
    )


@dataclass(frozen=True)
class ReleasePlan:
    """What a release sends.

    Attributes:
        assets: what is sent, in order; empty if all wheels are released already.
        records: the file that says where a wheel is, by its path in the folder.
        spent: the wheels in the folder that are assets afterwards.
    """

    assets: tuple[Asset, ...]
    records: dict[str, Released]
    spent: tuple[Path, ...]


def plan_release(folder: Path, tag: str, forge: Forge, files: Sequence[Path], scratch: Path) -> ReleasePlan:
    """Return what the release *tag* sends: the wheels in *folder* that no release has, and *files*.

    Wheels among *files* are of the tool itself; METADATA of each wheel is written to *scratch*.

    Raises:
        PublishError: a file of that name was released with other bytes, two have one name, or one is
            too large.
    """
    known = {found.file.filename: found for found in released(folder).values()}
    wheels = {path: path.relative_to(folder).as_posix() for path in sorted(folder.glob("wheels/*/*/*.whl"))}
    wheels |= {path: "" for path in files if path.suffix == ".whl"}
    sent: list[Path] = []
    records: dict[str, Released] = {}
    for wheel, inside in wheels.items():
        file, metadata = describe(wheel)
        before = known.get(file.filename)
        if before and before.file.sha256 != file.sha256:
            raise PublishError(
                f"{file.filename} was not released",
                because=f"it was released with SHA-256 {before.file.sha256}, and is {file.sha256} now",
                next_step="give it another version: sparkwright patchset bump",
            )
        place = inside or f"{_TOOL}/{file.sha256[:2]}/{file.sha256}/{file.filename}"
        if before:
            records[place + RECORD] = before
            continue
        beside = scratch / f"{file.filename}.metadata"
        beside.write_bytes(metadata)
        records[place + RECORD] = Released(file, forge.url(tag, file.filename))
        sent += [wheel, beside]
    if sent:
        sent += [path for path in files if path.suffix != ".whl"]
    if len({path.name for path in sent}) != len(sent):
        raise PublishError(f"release {tag} was not made", because="two of its files have one name")
    if large := [path for path in sent if path.stat().st_size >= _MOST_ASSET_BYTES]:
        raise PublishError(
            f"release {tag} was not made", because=f"{large[0].name} has 2 GiB or more, which no asset may"
        )
    assets = [
        Asset(path.name, path, path.stat().st_size, sha256_file(path), forge.url(tag, path.name))
        for path in sent
    ]
    return ReleasePlan(tuple(assets), records, tuple(path for path, place in wheels.items() if place))


def released(folder: Path) -> dict[str, Released]:
    """Return where each wheel of *folder* is that was released, by the path of the file that says so."""
    found = {}
    for top in ("wheels", _TOOL):
        for path in sorted(folder.glob(f"{top}/*/*/*.whl{RECORD}")):
            found[path.relative_to(folder).as_posix()] = decode_json(path.read_bytes(), Released)
    return found


def pages_of(folder: Path, plan: ReleasePlan) -> dict[str, bytes]:
    """Return the files that *plan* writes into *folder*: where wheels are, then the index over them, by path.

    The index lists what channels in *folder* offer, and the tool's own wheels.
    """
    target = FolderTarget(folder)
    offered = {
        file.sha256
        for name in channel_names(target)
        for file in read_unverified(target.read, name, name).state.offered
    }
    listed = {
        one.file.filename: one
        for path, one in {**released(folder), **plan.records}.items()
        if path.startswith(f"{_TOOL}/") or one.file.sha256 in offered
    }
    addresses = {name: one.url for name, one in listed.items()}
    pages = all_pages([one.file for one in listed.values()], addresses)
    records = {path: to_json(to_builtins(one)) + b"\n" for path, one in plan.records.items()}
    return {**records, **{f"{SIMPLE}/{path}": data for path, data in pages.items()}}


def record_release(folder: Path, plan: ReleasePlan) -> None:
    """Write the files of `pages_of`, and remove the wheels: each is an asset of a published release."""
    with storing(f"writing {folder}", instead="use another folder"):
        for path, data in pages_of(folder, plan).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / path, data)
        for wheel in plan.spent:
            wheel.unlink()
