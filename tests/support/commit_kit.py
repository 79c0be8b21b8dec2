"""Upstream's repository with a few commits, and its index of wheels by commit, on the loopback interface."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

import tiny_release
from kit import UpstreamRepository
from static_server import served
from upstream_kit import GENERATED

from sparkwright.wheel.names import version_tuple

MACHINES = ("aarch64", "x86_64")
VARIANT = "cu130"


class CommitIndex:
    """A folder in upstream's layout, served for the length of a ``with`` block.

    Attributes:
        folder: what is served.
        url: its address.
        requests: the paths of every GET.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.url, self.requests = self.stack.enter_context(served(self.folder))
        return self

    def __exit__(self, *_) -> None:
        self.stack.close()

    def page(self, target: str, links: Mapping[str, str]) -> None:
        """Write the page of *target* with *links*, address to text."""
        page = self.folder / target / VARIANT / "vllm" / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        lines = (f'<a href="{address}">{text}</a><br/>' for address, text in links.items())
        page.write_text("<!DOCTYPE html><html><body>" + "\n".join(lines) + "</body></html>")

    def list_files(self, commit: str, *names: str) -> None:
        """Write the page of *commit* that lists its files *names*, and upstream's newest with it."""
        self.page(commit, {f"../../{quote(name)}": name for name in names})
        self.page("nightly", {f"../../../{commit}/{quote(name)}": name for name in names})

    def offer(
        self,
        upstream: SmallUpstream,
        commit: str,
        version: str,
        *,
        machines: tuple[str, ...] = MACHINES,
        stated: str = "",
        changes: Mapping[str, bytes] | None = None,
    ) -> list[Path]:
        """Build the wheels of *commit*, which say that they are of *stated*, with *changes* to its files."""
        paths = []
        for machine in machines:
            name = f"vllm-{version}-cp38-abi3-manylinux_2_28_{machine}.whl"
            tree = {**upstream.files(commit), **(changes or {})}
            data = make_wheel(machine, name, version, stated or commit, tree)
            path = self.folder / commit / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            paths.append(path)
        self.list_files(commit, *(path.name for path in paths))
        return paths


class SmallUpstream(UpstreamRepository):
    """The tiny release's tree in git, to which commits are added."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        tree = tiny_release.make_tiny().tree
        files = {path: data for path, data in tree.items() if path not in GENERATED}
        homepage = tiny_release.GIT.removesuffix(".git").encode()
        project = files["pyproject.toml"].replace(b"https://example.org/vllm-project/vllm", homepage)
        files["pyproject.toml"] = project
        self.commit("The start (#1)", files)

    def files(self, commit: str) -> dict[str, bytes]:
        self.git("checkout", "--quiet", commit)
        paths = self.git("ls-files").split("\n")
        found = {path: (self.folder / path).read_bytes() for path in paths}
        self.git("checkout", "--quiet", "main")
        return found


def make_wheel(machine: str, name: str, version: str, commit: str, tree: dict[str, bytes]) -> bytes:
    numbers = ", ".join(map(repr, version_tuple(version)))
    stamp = tiny_release.VERSION_PY.format(version=version, numbers=numbers, commit=commit[:9])
    generated = {
        "vllm/_version.py": stamp.encode(),
        "PKG-INFO": tiny_release.metadata(version, tiny_release.GIT),
    }
    return tiny_release.make_wheel(machine, name, version, {**tree, **generated})


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
