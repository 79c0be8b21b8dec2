"""A checkout with a carry that breaks something, among harmless ones, and judges for bisections of it."""

import shutil
import subprocess
import sys

from tiny_release import CLAMP
from world import World

# A judge of its own: the tree is bad if clamp() doubles what it is given.
JUDGE = """\
import sys
from pathlib import Path
text = Path(sys.argv[1], "vllm", "clamp.py").read_text()
if "UNTESTABLE" in text:
    sys.exit(125)
sys.exit("value * 2" in text)
"""
# A probe of the same.
PROBE = """\
from probekit import expect


def probe():
    from vllm.clamp import clamp

    expect(clamp(4) == 4, "clamp(4) is not 4")
"""
DOUBLED = CLAMP.replace("return value", "return value * 2")


def git(world: World, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *words],
        cwd=world.root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def commit(world: World, message: str) -> str:
    if not (world.root / ".git").exists():
        git(world, "init", "--quiet", "--initial-branch=main")
        (world.root / ".gitignore").write_text("dist/\n.sparkwright/\n")
    git(world, "add", "--all")
    git(world, "commit", "--quiet", "-m", message)
    return git(world, "rev-parse", "HEAD")


def judge(world: World, text: str = JUDGE) -> str:
    path = world.folder / "judge.py"
    path.write_text(text)
    return f"run {sys.executable} {path} {{tree}}"


def harmless(world: World, number: int) -> str:
    """Write a carry of a file of its own; return its name."""
    name = f"word-{number}"
    world.carry(name, {f"vllm/word_{number}.py": f"WORD = {number}\n"})
    return name


def patch_twice(world: World) -> World:
    """Commit four harmless carries, and then five more with one that doubles what clamp() gets."""
    world.list_carries([])
    shutil.rmtree(world.root / "carries")
    for number in range(4):
        harmless(world, number)
    commit(world, "good")
    for number in range(4, 8):
        harmless(world, number)
    world.carry("doubled", {"vllm/clamp.py": DOUBLED})
    for number in range(8, 10):
        harmless(world, number)
    commit(world, "bad")
    return world
