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
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote

import msgspec

from sparkwright.base.config import decode_json, to_builtins
from sparkwright.base.digests import sha256_file, to_json
from sparkwright.base.errors import (
    ConfigError,
    LostRaceError,
    PublishError,
    SparkwrightError,
    TamperedError,
    UploadError,
)
from sparkwright.base.events import task
from sparkwright.base.text import clean
from sparkwright.publish.channel import channel_names
from sparkwright.publish.index import SIMPLE, PublishedFile, all_pages, describe, remove_stale
from sparkwright.publish.places import RECORD
from sparkwright.publish.repository import read_unverified
from sparkwright.publish.target import FolderTarget
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
# Of other names, forges change characters.
_ASSET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(?<!\.)")
_PER_PAGE, _MOST_PAGES = 100, 100  # the API lists 10,000 releases at the most


class _SentAsset(msgspec.Struct):
    """An asset as the API describes it; one that was cut off has no digest."""

    id: int
    name: str
    state: str
    digest: str | None = None


class _Release(msgspec.Struct):
    """A release as the API describes it."""

    id: int
    tag_name: str
    draft: bool
    upload_url: Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://")]


class _Complaint(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Refusal(msgspec.Struct):
    """The answer of the API to a request that it refuses."""

    message: str = ""
    errors: tuple[_Complaint, ...] = ()


class Asset(NamedTuple):
    """A file of a release, and where it is once that is published."""

    name: str
    path: Path
    size: int
    sha256: str
    url: str


@dataclass(frozen=True)
class Released:
    """A wheel that is an asset."""

    file: PublishedFile
    url: str


@dataclass(frozen=True)
class Forge:
    """A repository, ``OWNER/NAME``, on a forge.

    Attributes:
        token: what may write releases; in no argument, address or message.
    """

    repository: str
    api: str
    web: str
    token: str = field(repr=False)
    settings: IndexSettings

    def url(self, tag: str, name: str) -> str:
        """Return the address of the asset *name* of the release *tag*."""
        return f"{self.web}/{self.repository}/releases/download/{quote(tag, safe='')}/{quote(name, safe='')}"

    def send(self, tag: str, commit: str, assets: Sequence[Asset]) -> None:
        """Publish the release *tag* of *commit* with *assets*.

        Of what an interrupted run sent, the assets that are among *assets* are kept, and others removed.
        """
        release = self._release(tag, commit)
        present = {one.name: one for one in self._listed(f"releases/{release.id}/assets", _SentAsset)}
        missing = [one for one in assets if not _is(present.get(one.name), one)]
        if missing and not release.draft:
            raise PublishError(
                f"release {tag} was not changed",
                because=f"it is published, without {missing[0].name} of SHA-256 {missing[0].sha256}",
                next_step="use another tag: published releases never change",
            )
        wanted = {one.name: one for one in assets}
        with task(f"send {tag}", total=sum(one.size for one in missing), unit="bytes") as progress:
            for name, found in present.items() if release.draft else ():
                if name not in wanted or not _is(found, wanted[name]):  # cut off, or of another build
                    self._call("DELETE", f"releases/assets/{found.id}")
            for one in missing:
                address = f"{release.upload_url.partition('{')[0]}?name={quote(one.name, safe='')}"
                if not _is(self._call("POST", address, _SentAsset, file=one.path), one):
                    raise UploadError(
                        f"{one.name} was not published",
                        because="the forge does not state the digest of the bytes that were sent",
                        next_step="run the same command again: it sends that file again",
                    )
                progress.advance(one.size)
        if release.draft:
            body = {"draft": False, "target_commitish": commit}  # the draft may be of an earlier commit
            self._call("PATCH", f"releases/{release.id}", json=body)

    def _release(self, tag: str, commit: str) -> _Release:
        """Return the release of *tag*: the published one, the first draft, or a new one."""

        def present() -> list[_Release]:
            found = (one for one in self._listed("releases", _Release) if one.tag_name == tag)
            return sorted(found, key=lambda one: (one.draft, one.id))

        if found := present():
            return found[0]
        body = {"tag_name": tag, "target_commitish": commit, "name": tag, "draft": True}
        own: _Release = self._call("POST", "releases", _Release, json=body)
        found = present()
        if found and found[0].id != own.id:  # drafts of one tag may be several
            self._call("DELETE", f"releases/{own.id}")
            raise _lost_race(f"release {tag} was not made")
        return own

    def _listed(self, path: str, kind: Any) -> Iterator[Any]:
        for page in range(1, _MOST_PAGES + 1):
            entries = self._call("GET", f"{path}?per_page={_PER_PAGE}&page={page}", list[kind])
            yield from entries
            if len(entries) < _PER_PAGE:
                return
        raise _odd_answer(f"GET {path} failed for {self.repository}", f"it has {_MOST_PAGES} pages and more")

    def _call(
        self, method: str, path: str, kind: Any = object, *, file: Path | None = None, json: Any = None
    ) -> Any:
        """Return the answer, of that *kind*; *path* is one of the repository's, or an address.

        What failed in passing is sent again, but not what makes something: its answer may be lost.
        """
        import requests

        address = path if "://" in path else f"{self.api}/repos/{self.repository}/{path}"
        headers = {"Content-Type": "application/octet-stream"} if file else {}
        settings = replace(self.settings, attempts=1) if method == "POST" else self.settings
        what = f"{method} {path.partition('?')[0]} failed for {self.repository}"
        try:
            for attempt in retrying(settings, path):
                with attempt, file.open("rb") if file else nullcontext() as body:
                    answer = self._session.request(
                        method, address, headers=headers, data=body, json=json, timeout=settings.timeout_s,
                        allow_redirects=False,
                    )  # fmt: skip
                    if answer.is_redirect:  # its answer could name where the token is sent next
                        raise requests.HTTPError(response=answer)
                    if not (method == "DELETE" and answer.status_code == HTTPStatus.NOT_FOUND):  # it is gone
                        answer.raise_for_status()
                    return decode_json(answer.content or b"null", kind)
        except (requests.RequestException, RefusedFetchError) as error:
            raise _refused(what, error) from error
        except msgspec.MsgspecError as error:
            raise _odd_answer(what, clean(str(error), 300)) from error

    @cached_property
    def _session(self) -> requests.Session:
        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {self.token}"
            return request

        session = open_session(self.settings)
        session.headers["Accept"] = "application/vnd.github+json"
        session.auth = authorize  # a header of the session would give way to ~/.netrc
        return session


def _is(found: _SentAsset | None, asset: Asset) -> bool:
    """Tell if *found* is *asset*, and whole."""
    return bool(found and found.state == "uploaded" and found.digest == f"sha256:{asset.sha256}")


def _odd_answer(what: str, why: str) -> UploadError:
    because = f"its answer is not as GitHub's: {why}"
    return UploadError(what, because=because, next_step="check GITHUB_API_URL")


def _lost_race(what: str) -> LostRaceError:
    step = "run the same command again, once that one is done"
    return LostRaceError(what, because="another publisher made it at the same time", next_step=step)


def _refused(what: str, error: Exception) -> SparkwrightError:
    """Return the error of a request that was not answered, or refused with *error*."""
    response: requests.Response | None = getattr(error, "response", None)
    because, step = reason_of(error), "check the network; the same command goes on where this one stopped"
    if response is None:
        return UploadError(what, because=because, next_step=step)
    status, told = response.status_code, response.headers
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        with suppress(msgspec.MsgspecError):
            refusal = decode_json(response.content, _Refusal)
            if any(one.code == "already_exists" for one in refusal.errors):
                return _lost_race(what)
            texts = (refusal.message, *(one.message or one.code for one in refusal.errors))
            because = clean("; ".join(filter(None, [because, *texts])), 500)
        step = "check --tag and --commit"
    elif (
        status == HTTPStatus.TOO_MANY_REQUESTS
        or "Retry-After" in told
        or told.get("X-RateLimit-Remaining") == "0"
    ):
        step = "wait some minutes, as the forge limits requests; the same command then goes on"
    elif response.is_redirect or status in {401, 403, 404}:
        step = "check GITHUB_REPOSITORY, and that the token in GITHUB_TOKEN may write contents"
    return UploadError(what, because=because, next_step=step)


def read_forge(environment: Mapping[str, str] | None = None) -> Forge:
    """Return the forge that *environment* (ours by default) names, as GitHub's runners do."""
    found = os.environ if environment is None else environment
    repository = found.get("GITHUB_REPOSITORY", "")
    if len([part for part in repository.split("/") if part]) != 2:  # noqa: PLR2004 - owner and name
        because = f"GITHUB_REPOSITORY is {repository!r}"
        raise ConfigError("no repository is named", because=because, next_step="set it to OWNER/NAME")
    token = found.get("GITHUB_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):  # http.client would show it in its error
        because = "GITHUB_TOKEN has a character that no header of HTTP can have"
        raise ConfigError("the forge cannot be asked", because=because, next_step="set it to the token alone")
    api = found.get("GITHUB_API_URL") or "https://api.github.com"
    web = found.get("GITHUB_SERVER_URL") or "https://github.com"
    return Forge(repository, api, web, token, read_settings(found))


class ReleasePlan(NamedTuple):
    """The assets that a release sends; none if every wheel was released before.

    Attributes:
        records: the file that says where a wheel is, by its path in the folder.
        spent: the wheels in the folder that are assets afterwards.
    """

    assets: tuple[Asset, ...]
    records: dict[str, Released]
    spent: tuple[Path, ...]


def plan_release(folder: Path, tag: str, forge: Forge, files: Sequence[Path], scratch: Path) -> ReleasePlan:
    """Return what the release *tag* sends: the wheels in *folder* that no release has, and *files*.

    Wheels among *files* are of the tool itself; METADATA of each wheel is written to *scratch*.
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
    if odd := [path.name for path in sent if not _ASSET_NAME.fullmatch(path.name)]:
        raise PublishError(
            f"release {tag} was not made",
            because=f"no asset may be named {odd[0]!r}: a forge would change that name",
            next_step="use letters, digits and ._+- alone",
        )
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
            try:
                found[path.relative_to(folder).as_posix()] = decode_json(path.read_bytes(), Released)
            except msgspec.MsgspecError as error:
                because, step = clean(str(error), 300), "put it back from the history of its branch"
                raise TamperedError(f"{path} names no asset", because=because, next_step=step) from error
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
    """Write the files of `pages_of`, and remove the wheels: each is an asset of a published release.

    Pages of projects of which no wheel is listed any more are removed too.
    """
    with storing(f"writing {folder}", instead="use another folder"):
        pages = pages_of(folder, plan)
        for path, data in pages.items():
            write_atomically(folder / path, data)
        remove_stale(folder, pages)
        for wheel in plan.spent:
            wheel.unlink()
