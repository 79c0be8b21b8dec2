"""A stand-in for a forge: the part of GitHub's API for releases, the downloads of assets, and its pages.

As a program, ``forge.py FOLDER PAGES`` serves until it is ended, with the token in ``GITHUB_TOKEN``. It
writes its addresses to ``FOLDER/addresses``; what was sent before is kept in FOLDER.
"""

import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from http_server import Handler, serving
from static_server import served

REPOSITORY = "owner/wheels"
TOKEN = "token-of-the-test"  # noqa: S105


@dataclass
class Forge:
    """The releases, and planted faults.

    Attributes:
        asked: method and path of each request.
        faults: what goes wrong with the next upload: ``cut`` or a status; `None` for nothing.
        headers: what an answer with such a status has besides.
        planted: the next answer to a method, in place of its own.
        before_answer: called before each answer, with method and path.
    """

    folder: Path
    token: str = TOKEN
    url: str = ""
    pages: str = ""
    releases: dict[int, dict] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str | int | None] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    planted: dict[str, bytes] = field(default_factory=dict)
    before_answer: object = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def environment(self) -> dict[str, str]:
        """What a runner sets."""
        return {
            "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_API_URL": f"{self.url}/api",
            "GITHUB_SERVER_URL": self.url, "GITHUB_TOKEN": self.token,
        }  # fmt: skip

    def load(self) -> None:
        kept = self.folder / "releases.json"
        if kept.exists():
            self.releases = {int(key): value for key, value in json.loads(kept.read_text()).items()}

    def save(self) -> None:
        (self.folder / "releases.json").write_text(json.dumps(self.releases, indent=1))

    def next_id(self) -> int:
        return 1 + max(
            [0, *self.releases, *(int(key) for one in self.releases.values() for key in one["files"])]
        )

    def of_tag(self, tag: str) -> list[dict]:
        return [one for one in self.releases.values() if one["tag_name"] == tag]

    def published(self) -> dict[str, bytes]:
        """Return the assets that anybody can download, by name."""
        return {
            asset["name"]: (self.folder / key).read_bytes()
            for one in self.releases.values()
            if not one["draft"]
            for key, asset in one["files"].items()
        }


class _Handler(Handler):
    """Answers as the API does."""

    def answer(self) -> None:
        forge: Forge = self.server.forge
        path = urlsplit(self.path).path
        forge.asked.append((self.command, path))
        if forge.before_answer:
            forge.before_answer(self.command, path)
        if found := re.fullmatch(rf"/{REPOSITORY}/releases/download/([^/]+)/([^/]+)", path):
            self.download(forge, *map(unquote, found.groups()))
        elif found := re.fullmatch(r"/objects/(\d+)", path):
            self.file(forge.folder / found[1])
        elif self.headers.get("Authorization") != f"Bearer {forge.token}":
            self.tell(401, {"message": "Bad credentials"})
        elif self.command in forge.planted:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.reply(200, forge.planted.pop(self.command))
        elif found := re.fullmatch(rf"/(?:api|uploads)/repos/{REPOSITORY}/(.*)", path):
            with forge.lock:
                self.call(forge, found[1])
                forge.save()
        else:
            self.tell(404, {"message": "Not Found"})

    do_GET = do_POST = do_PATCH = do_DELETE = do_HEAD = answer  # noqa: N815

    def download(self, forge: Forge, tag: str, name: str) -> None:
        for one in forge.of_tag(tag):
            for key, asset in one["files"].items():
                if asset["name"] == name and asset["state"] == "uploaded" and not one["draft"]:
                    self.reply(302, b"", Location=f"{forge.url}/objects/{key}")
                    return
        self.reply(404, b"Not Found")

    def file(self, path: Path) -> None:
        data = path.read_bytes()
        if part := self.asked_part(len(data)):
            named = f"bytes {part[0]}-{part[1] - 1}/{len(data)}"
            self.reply(206, data[slice(*part)], Content_Range=named, Accept_Ranges="bytes")
        else:
            self.reply(200, data, Accept_Ranges="bytes")

    def call(self, forge: Forge, path: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        body = {}
        if self.command in {"POST", "PATCH"} and "/uploads/" not in self.path:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if path == "releases":
            self.listed(forge, body, query)
        elif found := re.fullmatch(r"releases/assets/(\d+)", path):
            self.asset(forge, found[1])
        elif found := re.fullmatch(r"releases/(\d+)(/assets)?", path):
            self.one(forge, int(found[1]), body, query, assets=bool(found[2]))
        else:
            self.tell(404, {"message": "Not Found"})

    def listed(self, forge: Forge, body: dict, query: dict) -> None:
        if self.command == "GET":
            self.tell(200, self.page([self.shown(forge, one) for one in forge.releases.values()], query))
        else:
            one = {"id": forge.next_id(), "assets": [], "files": {}, **body}
            one["upload_url"] = (
                f"{forge.url}/uploads/repos/{REPOSITORY}/releases/{one['id']}/assets{{?name,label}}"
            )
            forge.releases[one["id"]] = one
            self.tell(201, self.shown(forge, one))

    def one(self, forge: Forge, key: int, body: dict, query: dict, *, assets: bool) -> None:
        one = forge.releases.get(key)
        if one is None:
            self.tell(404, {"message": "Not Found"})
        elif assets and self.command == "GET":
            self.tell(200, self.page(self.shown(forge, one)["assets"], query))
        elif assets:
            self.upload(forge, one, query["name"][0])
        elif self.command == "PATCH":
            one.update(body)
            self.tell(200, self.shown(forge, one))
        elif self.command == "DELETE":
            del forge.releases[key]
            self.tell(204, None)

    def asset(self, forge: Forge, key: str) -> None:
        one = next((one for one in forge.releases.values() if key in one["files"]), None)
        if one is None:
            self.tell(404, {"message": "Not Found"})
        elif self.command == "DELETE":
            del one["files"][key]
            (forge.folder / key).unlink(missing_ok=True)
            self.tell(204, None)
        else:
            self.file(forge.folder / key)

    def upload(self, forge: Forge, one: dict, name: str) -> None:
        fault = forge.faults.pop(0) if forge.faults else None
        left, key = int(self.headers["Content-Length"]), str(forge.next_id())
        if any(asset["name"] == name for asset in one["files"].values()):
            self.rfile.read(left)
            self.tell(422, {"message": "Validation Failed", "errors": [{"code": "already_exists"}]})
            return
        if isinstance(fault, int):
            self.rfile.read(left)
            self.tell(fault, {"message": "planted"}, **forge.headers)
            return
        digest = hashlib.sha256()
        one["files"][key] = {"name": name, "state": "starter", "size": 0}
        with (forge.folder / key).open("wb") as stream:
            while left and (data := self.rfile.read(min(left, 1 << 16))):
                left -= len(data)
                if fault == "cut":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                stream.write(data)
                digest.update(data)
        size = (forge.folder / key).stat().st_size
        one["files"][key] = {
            "name": name,
            "state": "uploaded",
            "size": size,
            "digest": f"sha256:{digest.hexdigest()}",
        }
        self.tell(201, self.shown_asset(key, one["files"][key]))

    def shown(self, forge: Forge, one: dict) -> dict:
        assets = [self.shown_asset(key, asset) for key, asset in one["files"].items()]
        return {**one, "assets": assets}

    def shown_asset(self, key: str, asset: dict) -> dict:
        return {"id": int(key), **asset}

    def page(self, entries: list, query: dict) -> list:
        size, number = int(query["per_page"][0]), int(query["page"][0])
        return entries[size * (number - 1) : size * number]

    def tell(self, status: int, value: object, **headers: str) -> None:
        self.reply(status, b"" if value is None else json.dumps(value).encode(), **headers)


@contextmanager
def forge(folder: Path, pages: Path, token: str = TOKEN):
    """Give a forge whose releases are kept in *folder*, and whose pages are those in *pages*."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        made = Forge(folder, token)
        made.load()
        made.url = stack.enter_context(serving(_Handler, forge=made)).url
        made.pages, _ = stack.enter_context(served(pages))
        yield made


if __name__ == "__main__":
    with forge(Path(sys.argv[1]), Path(sys.argv[2]), os.environ["GITHUB_TOKEN"]) as running:
        lines = [f"{name}={quote(value, safe=':/')}" for name, value in running.environment.items()]
        lines = [line for line in lines if not line.startswith("GITHUB_TOKEN=")]
        (Path(sys.argv[1]) / "addresses").write_text("\n".join([*lines, f"PAGES={running.pages}", ""]))
        while True:
            time.sleep(3600)
