"""A stand-in for GitHub's command line: the calls that publishing makes, with the state in a folder.

It refuses what GitHub refuses: an asset whose name is taken, one of 2 GiB or more, a file of the branch
whose blob id is not stated or is another one, a call without a token. It is run as a program of its own.

``$GH_STATE`` holds ``calls.jsonl`` (the arguments of each call), ``assets/`` with ``assets.json``,
``pages/``, and ``faults.json``, a list of what to do to the next calls: answer ``HTTP 503``, leave an upload
``cut``, store other bytes (``flip``).
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

STATE = Path(os.environ["GH_STATE"])
ASSETS, PAGES = STATE / "assets", STATE / "pages"


def say(text: str) -> None:
    sys.stdout.write(text)


def fail(text: str, body: str = "") -> NoReturn:
    say(body)
    sys.stderr.write(f"gh: {text}\n")
    raise SystemExit(1)


def load(name: str, default):
    path = STATE / name
    return json.loads(path.read_text()) if path.exists() else default


def save(name: str, value) -> None:
    (STATE / name).write_text(json.dumps(value))


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def next_fault(*kinds: str) -> str:
    faults = load("faults.json", [])
    if faults and faults[0] in kinds:
        save("faults.json", faults[1:])
        return faults[0]
    return ""


def page_at(path: str) -> Path:
    return PAGES / unquote(path)


def contents(options: argparse.Namespace, path: str, ref: str) -> None:
    at = page_at(path)
    if options.method == "GET":
        if ref != "gh-pages" or not at.is_file():
            fail("Not Found (HTTP 404)")
        data = at.read_bytes()
        text = base64.encodebytes(data).decode() if len(data) < 1 << 20 else ""
        say(json.dumps({"sha": blob_id(data), "size": len(data), "content": text}))
        return
    body = json.loads(sys.stdin.buffer.read())
    if body["branch"] != "gh-pages":
        fail(f"Branch {body['branch']} not found (HTTP 404)")
    present = blob_id(at.read_bytes()) if at.is_file() else None
    if present and "sha" not in body:
        fail('Invalid request.\n\n"sha" wasn\'t supplied. (HTTP 422)')
    if "sha" in body and body["sha"] != present:
        fail(f"{path} does not match {body['sha']} (HTTP 409)")
    if options.method == "DELETE":
        if present is None:
            fail("Not Found (HTTP 404)")
        at.unlink()
        say(json.dumps({"content": None}))
        return
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(base64.b64decode(body["content"]))
    say(json.dumps({"content": {"sha": blob_id(at.read_bytes())}}))


def api(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("endpoint")
    parser.add_argument("--method", default="GET")
    parser.add_argument("--input", choices=["-"])
    parser.add_argument("--paginate", action="store_true")
    options = parser.parse_args(arguments)
    parts = urlsplit(options.endpoint)
    repos, owner, name, *rest = parts.path.split("/")
    if (repos, owner, name) != ("repos", "owner", "wheels-of-ours"):
        fail("Not Found (HTTP 404)")
    match rest:
        case ["releases", "tags", tag]:
            if tag not in load("releases.json", []):
                fail("Not Found (HTTP 404)")
            say(json.dumps({"id": load("releases.json", []).index(tag)}))
        case ["releases", number, "assets"]:
            tag = load("releases.json", [])[int(number)]
            found = [asset for asset in load("assets.json", []) if asset["tag"] == tag]
            for start in range(0, max(len(found), 1), 100):
                say(json.dumps(found[start : start + 100]))
        case ["git", "blobs", sha]:
            data = next(
                data for at in PAGES.rglob("*") if at.is_file() and blob_id(data := at.read_bytes()) == sha
            )
            say(json.dumps({"content": base64.encodebytes(data).decode()}))
        case ["git", "trees", "gh-pages"]:
            files = [at for at in PAGES.rglob("*") if at.is_file()]
            tree = [
                {"type": "blob", "path": at.relative_to(PAGES).as_posix(), "size": at.stat().st_size}
                for at in files
            ]
            say(json.dumps({"tree": tree, "truncated": False}))
        case ["contents", *path]:
            contents(options, "/".join(path), parse_qs(parts.query).get("ref", [""])[0])
        case _:
            fail(f"unknown endpoint {options.endpoint} (HTTP 404)")


def release(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("verb", choices=["create", "upload", "download", "delete-asset"])
    parser.add_argument("tag")
    parser.add_argument("name", nargs="?", default="")
    for flag in ("--title", "--notes", "--pattern", "--dir"):
        parser.add_argument(flag)
    parser.add_argument("--repo", required=True)
    parser.add_argument("--yes", action="store_true")
    parser.add_argument("--clobber", action="store_true")
    options = parser.parse_args(arguments)
    releases, assets = load("releases.json", []), load("assets.json", [])
    if options.verb == "create":
        save("releases.json", [*releases, options.tag])
        return
    if options.tag not in releases:
        fail("release not found")
    if options.verb == "upload":
        file, _, label = options.name.partition("#")
        upload(options, Path(file), label, assets)
    elif options.verb == "download":
        shutil.copy(ASSETS / options.pattern, Path(options.dir, options.pattern))
    elif options.yes:
        save("assets.json", [asset for asset in assets if asset["name"] != options.name])
    else:
        fail("--yes required when not running interactively")


def upload(options: argparse.Namespace, file: Path, label: str, assets: list[dict]) -> None:
    if any(asset["name"] == file.name for asset in assets) and not options.clobber:
        fail(f"asset under the same name already exists: [{file.name}]")
    size = file.stat().st_size
    if size >= 2 << 30:
        fail("Validation Failed (HTTP 422)\nsize must be less than 2147483648")
    asset = {"tag": options.tag, "name": file.name, "label": label, "size": size, "state": "uploaded"}
    ASSETS.mkdir(exist_ok=True)
    if next_fault("cut"):
        save("assets.json", [*assets, {**asset, "state": "starter"}])
        os.kill(os.getppid() if os.environ.get("GH_CUT") == "parent" else os.getpid(), 9)
        raise SystemExit(1)
    data = bytearray(file.read_bytes())
    if next_fault("flip"):
        data[len(data) // 2] ^= 1
    (ASSETS / file.name).write_bytes(data)
    if "no-digest" not in load("features.json", []):
        asset["digest"] = f"sha256:{hashlib.sha256(data).hexdigest()}"
    save("assets.json", [*assets, asset])


def main() -> None:
    STATE.mkdir(exist_ok=True)
    with (STATE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (STATE / "calls.jsonl").open("a") as calls:
            calls.write(json.dumps(sys.argv[1:]) + "\n")
        if not os.environ.get("GH_TOKEN"):
            fail("To get started with GitHub CLI, please run:  gh auth login")
        if os.environ["GH_TOKEN"].startswith("wrong"):
            fail("Bad credentials (HTTP 401)")
        if next_fault("HTTP 503"):
            fail("HTTP 503: Service Unavailable")
        if sys.argv[1] == "api":
            api(sys.argv[2:])
        elif sys.argv[1] == "release":
            release(sys.argv[2:])
        else:
            fail(f"unknown command {sys.argv[1]!r}")


if __name__ == "__main__":
    main()
