"""A small Debian with systemd as its first process, in a container of systemd-nspawn.

The root folder is made once by mmdebstrap; each container lies over it, and what it writes is its own.
Sources, interpreter and packages are mounted at their own paths, read-only. The network is the host's.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
from world import wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = ("systemd-nspawn", "mmdebstrap", "nsenter", "mount")
PACKAGES = (
    "systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,procps,ca-certificates,libnuma1,python3"
)
BOOT_S = 120.0
SHARED = Path("/srv/shared")
_SUITE = "VERSION_CODENAME="
_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def lacking() -> str:
    """Return the reason why no container can be booted here; empty if it can."""
    if os.geteuid() != 0:
        return "only root can boot a container"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"not installed: {', '.join(missing)} (Debian: systemd-container, mmdebstrap)"
    if _unified() is None:
        return "no hierarchy of cgroups v2 is mounted"
    if ROOT.is_relative_to("/tmp"):
        return f"a container, which has a /tmp of its own, does not see the clone in {ROOT}"
    return ""


def _unified() -> Path | None:
    return next((path for path in _CGROUPS if (path / "cgroup.procs").exists() and _is_v2(path)), None)


def _is_v2(path: Path) -> bool:
    return (path / "cgroup.controllers").exists()


def rootfs(folder: Path) -> Path:
    """Return the root folder of a Debian of the host's release, made once below *folder*."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    suite = next(line.removeprefix(_SUITE) for line in release.splitlines() if line.startswith(_SUITE))
    made = folder / f"{suite}-{hashlib.sha256(PACKAGES.encode()).hexdigest()[:8]}"
    if not (made / "etc" / "made").exists():
        shutil.rmtree(made, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        sources = [str(path) for path in sorted(Path("/etc/apt/sources.list.d").glob("debian.sources"))]
        command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", suite, made, *sources]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        (made / "root").chmod(0o711)  # as the interpreter may lie below it
        (made / "etc" / "made").touch()
    return made


@dataclass
class Container:
    """A booted container.

    Attributes:
        folder: an empty folder for its files; what it wrote is in ``upper``.
        below: the root folder that it lies over.
        shared: folder of the host that it sees as `SHARED`, read-only.
        seen: folders of the host that it sees at their own paths, read-only, beside those of these tests.
    """

    folder: Path
    below: Path
    shared: Path
    seen: tuple[Path, ...] = ()
    _nspawn: subprocess.Popen[bytes] | None = None
    _leader: int = 0
    _starts: int = 0
    _group: Path | None = None

    @property
    def merged(self) -> Path:
        return self.folder / "root"

    def mount(self) -> None:
        """Lay its own folder over the root folder."""
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        layers = f"lowerdir={self.below},upperdir={self.folder / 'upper'},workdir={self.folder / 'work'}"
        command = ["mount", "-t", "overlay", "overlay", "-o", layers, self.merged]
        subprocess.run(command, check=True)

    def boot(self) -> None:
        """Start it, and wait until its systemd has started everything."""
        self._starts += 1
        binds = [
            f"--bind-ro={self.shared}:{SHARED}",
            *(f"--bind-ro={path}" for path in (*_own_paths(), *self.seen)),
        ]
        command = ["systemd-nspawn", "--quiet", "--boot", "--directory", str(self.merged), "--register=no"]
        command += ["--link-journal=no", "--timezone=off", *binds]
        group = _unified()
        assert group is not None
        if not Path("/run/systemd/system").is_dir():
            self._group = group / f"sparkwright-test-{os.getpid()}"
            script = f'mkdir -p {self._group} && echo $$ >{self._group}/cgroup.procs && exec "$@"'
            command = ["/bin/sh", "-c", script, "sh", *command, "--keep-unit"]
        log = (self.folder / f"console-{self._starts}.log").open("wb")
        environment = {**os.environ, "UNIFIED_CGROUP_HIERARCHY": "1"}
        with log:
            self._nspawn = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self._leader = wait_until(self._find_leader, patience_s=BOOT_S)
        wait_until(
            lambda: self.run("systemctl", "is-system-running").stdout.strip() in {"running", "degraded"},
            patience_s=BOOT_S,
        )

    def _find_leader(self) -> int:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, self.console()
        for child in psutil.Process(self._nspawn.pid).children(recursive=True):
            with contextlib.suppress(OSError, psutil.Error):  # it has ended meanwhile
                status = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
                spaces = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
                if len(spaces) > 1 and spaces[-1] == "1" and child.name() == "systemd":
                    return child.pid
        return 0

    def console(self) -> str:
        """Return the last lines of its console."""
        text = (self.folder / f"console-{self._starts}.log").read_text(errors="replace")
        return text[-4000:]

    def run(
        self, *words: str | Path, user: str = "", check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as root or with the session of *user*."""
        command = ["nsenter", "--target", str(self._leader), "--mount", "--uts", "--ipc", "--pid", "--cgroup"]
        command += [
            "--root",
            "--wd",
            "--",
            "/usr/bin/env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG=C.UTF-8",
        ]
        if user:
            uid = (self.merged / "etc/passwd").read_text().split(f"\n{user}:x:")[1].partition(":")[0]
            command += [f"XDG_RUNTIME_DIR=/run/user/{uid}", f"HOME=/home/{user}", f"USER={user}"]
            command += ["/usr/sbin/runuser", "-u", user, "--"]
        else:
            command += ["HOME=/root", "USER=root"]
        command += map(str, words)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def power_off(self) -> None:
        """Shut it down in order, as at the end of a day."""
        assert self._nspawn is not None
        self.run("systemctl", "poweroff")
        self._nspawn.wait(timeout=BOOT_S)

    def remove(self) -> None:
        """End it in any case, and unmount its folder."""
        if self._nspawn is not None and self._nspawn.poll() is None:
            self._nspawn.terminate()
            try:
                self._nspawn.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()
        if self._group is not None and self._group.is_dir():
            (self._group / "cgroup.kill").write_text("1")
            wait_until(self._is_empty)
            for folder in (*sorted(self._group.rglob("*/"), reverse=True), self._group):
                folder.rmdir()
        subprocess.run(["umount", "--lazy", self.merged], check=False)

    def _is_empty(self) -> bool:
        assert self._group is not None
        return "populated 0" in (self._group / "cgroup.events").read_text()


def _own_paths() -> tuple[Path, ...]:
    """Return the sources, this environment and the interpreter below it."""
    found = {ROOT, Path(sys.prefix), Path(sys.base_prefix)} - {Path("/usr")}
    return tuple(
        sorted(path for path in found if not any(path.is_relative_to(one) for one in found - {path}))
    )
