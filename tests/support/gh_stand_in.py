"""A stand-in for GitHub's command line: the calls that publishing makes, with the state in a folder.

It refuses what GitHub refuses: an asset whose name is taken, one of 2 GiB or more, a file of the branch
whose blob id is not stated or is another one, a call without a token. It is run as a program of its own, some
hundred times in a test: so it imports little, and is imported, since Python keeps no bytecode of a script.

``$GH_STATE`` holds ``calls.jsonl`` (the arguments of each call), ``assets/`` with ``assets.json``,
``pages/``, and ``faults.json``, a list of what to do to the next calls: answer ``HTTP 503``, leave an upload
``cut``, store other bytes (``flip``).
"""

import binascii
import fcntl
import hashlib
import json
import os
import sys

STATE = os.environ["GH_STATE"]
ASSETS, PAGES = f"{STATE}/assets", f"{STATE}/pages"


def say(text: str) -> None:
    sys.stdout.write(text)


def fail(text: str, body: str = ""):
    say(body)
    sys.stderr.write(f"gh: {text}\n")
    raise SystemExit(1)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def load(name: str, default):
    path = f"{STATE}/{name}"
    return json.loads(read(path)) if os.path.exists(path) else default


def save(name: str, value) -> None:
    write(f"{STATE}/{name}", json.dumps(value).encode())


def base64(data: bytes) -> str:
    """Return the text in lines, as GitHub sends it."""
    return "".join(binascii.b2a_base64(data[at : at + 57]).decode() for at in range(0, len(data), 57))


def unquote(text: str) -> str:
    first, *rest = text.encode().split(b"%")
    return b"".join([first, *(bytes.fromhex(part[:2].decode()) + part[2:] for part in rest)]).decode()


def parse(arguments: list[str], *, values: tuple[str, ...], flags: tuple[str, ...]):
    """The words that are no options, and the options; an unknown one is an error."""
    words, options = [], dict.fromkeys(flags, False)
    rest = iter(arguments)
    for word in rest:
        if word in values:
            options[word] = next(rest)
        elif word in flags:
            options[word] = True
        elif word.startswith("-"):
            fail(f"unknown flag: {word}")
        else:
            words.append(word)
    return words, options


def files_below(folder: str) -> list[str]:
    return [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def next_fault(*kinds: str) -> str:
    faults = load("faults.json", [])
    if faults and faults[0] in kinds:
        save("faults.json", faults[1:])
        return faults[0]
    return ""


def contents(method: str, path: str, ref: str) -> None:
    at = f"{PAGES}/{unquote(path)}"
    if method == "GET":
        if ref != "gh-pages" or not os.path.isfile(at):
            fail("Not Found (HTTP 404)")
        data = read(at)
        text = base64(data) if len(data) < 1 << 20 else ""
        say(json.dumps({"sha": blob_id(data), "size": len(data), "content": text}))
        return
    body = json.loads(sys.stdin.buffer.read())
    if body["branch"] != "gh-pages":
        fail(f"Branch {body['branch']} not found (HTTP 404)")
    present = blob_id(read(at)) if os.path.isfile(at) else None
    if present and "sha" not in body:
        fail('Invalid request.\n\n"sha" wasn\'t supplied. (HTTP 422)')
    if "sha" in body and body["sha"] != present:
        fail(f"{path} does not match {body['sha']} (HTTP 409)")
    if method == "DELETE":
        if present is None:
            fail("Not Found (HTTP 404)")
        os.unlink(at)
        say(json.dumps({"content": None}))
        return
    os.makedirs(os.path.dirname(at), exist_ok=True)
    write(at, binascii.a2b_base64(body["content"]))
    say(json.dumps({"content": {"sha": blob_id(read(at))}}))


def api(arguments: list[str]) -> None:
    (endpoint,), options = parse(arguments, values=("--method", "--input"), flags=("--paginate",))
    if options.get("--input", "-") != "-":
        fail("only standard input is read")
    place, _, query = endpoint.partition("?")
    repos, owner, name, *rest = place.split("/")
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
            data = next(data for at in files_below(PAGES) if blob_id(data := read(at)) == sha)
            say(json.dumps({"content": base64(data)}))
        case ["git", "trees", "gh-pages"]:
            tree = [
                {"type": "blob", "path": os.path.relpath(at, PAGES), "size": os.path.getsize(at)}
                for at in files_below(PAGES)
            ]
            say(json.dumps({"tree": tree, "truncated": False}))
        case ["contents", *path]:
            contents(options.get("--method", "GET"), "/".join(path), query.removeprefix("ref="))
        case _:
            fail(f"unknown endpoint {endpoint} (HTTP 404)")


def release(arguments: list[str]) -> None:
    values = ("--title", "--notes", "--pattern", "--dir", "--repo")
    (verb, tag, *rest), options = parse(arguments, values=values, flags=("--yes", "--clobber"))
    name = rest[0] if rest else ""
    if "--repo" not in options:
        fail("no repository is named")
    releases, assets = load("releases.json", []), load("assets.json", [])
    if verb == "create":
        save("releases.json", [*releases, tag])
        return
    if tag not in releases:
        fail("release not found")
    if verb == "upload":
        file, _, label = name.partition("#")
        upload(tag, file, label, assets, clobber=options["--clobber"])
    elif verb == "download":
        pattern = options["--pattern"]
        write(os.path.join(options["--dir"], pattern), read(f"{ASSETS}/{pattern}"))
    elif verb != "delete-asset":
        fail(f"unknown command {verb!r} for release")
    elif options["--yes"]:
        save("assets.json", [asset for asset in assets if asset["name"] != name])
    else:
        fail("--yes required when not running interactively")


def upload(tag: str, file: str, label: str, assets: list[dict], *, clobber: bool) -> None:
    name = os.path.basename(file)
    if any(asset["name"] == name for asset in assets) and not clobber:
        fail(f"asset under the same name already exists: [{name}]")
    size = os.path.getsize(file)
    if size >= 2 << 30:
        fail("Validation Failed (HTTP 422)\nsize must be less than 2147483648")
    asset = {"tag": tag, "name": name, "label": label, "size": size, "state": "uploaded"}
    os.makedirs(ASSETS, exist_ok=True)
    if next_fault("cut"):
        save("assets.json", [*assets, {**asset, "state": "starter"}])
        os.kill(os.getppid() if os.environ.get("GH_CUT") == "parent" else os.getpid(), 9)
        raise SystemExit(1)
    data = bytearray(read(file))
    if next_fault("flip"):
        data[len(data) // 2] ^= 1
    write(f"{ASSETS}/{name}", data)
    if "no-digest" not in load("features.json", []):
        asset["digest"] = f"sha256:{hashlib.sha256(data).hexdigest()}"
    save("assets.json", [*assets, asset])


def main() -> None:
    os.makedirs(STATE, exist_ok=True)
    with open(f"{STATE}/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(f"{STATE}/calls.jsonl", "a") as calls:
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
