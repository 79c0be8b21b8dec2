"""Real servers for targets of wheels, each in a process of its own, and a proxy with faults before them."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import requests

from sparkwright.base.ports import free_port
from sparkwright.publish.targets import open_target
from sparkwright.upstream.settings import IndexSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit import Recorder

    from sparkwright.base.errors import UploadError

SECRET = "secret-of-the-test"  # noqa: S105 - it opens nothing
FAST = IndexSettings(timeout_s=10, attempts=3, backoff_s=0.01)
_SUPPORT = Path(__file__).parent
_DAV_EXT = Path("/usr/lib/nginx/modules/ngx_http_dav_ext_module.so")
_APACHE_MODULES = Path("/usr/lib/apache2/modules")
_NGINX_CONFIG = """\
load_module {dav_ext};
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  types {{ text/html html; application/json json; }}
@SERVER@
}}
"""
_NGINX_SERVER = """\
server {{
  listen 127.0.0.1:{port};
  root {root};
  client_max_body_size 0;
  client_body_temp_path {root}/.uploads;
  location / {{
    dav_methods PUT DELETE MKCOL COPY MOVE;
    dav_ext_methods PROPFIND;
    {auth}
  }}
}}
"""
_APACHE_CONFIG = """\
ServerRoot {folder}
ServerName 127.0.0.1
PidFile {folder}/apache.pid
ErrorLog {folder}/error.log
Listen 127.0.0.1:{port}
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule dav_module {modules}/mod_dav.so
LoadModule dav_fs_module {modules}/mod_dav_fs.so
DocumentRoot {root}
DavLockDB {folder}/lockdb
<Directory {root}>
  Dav On
  Require all granted
</Directory>
"""


@contextlib.contextmanager
def process(argv: list[str | Path], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a session of its own until the block ends; it has to listen on *port*."""
    with log.open("ab") as output:
        child = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and child.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        else:
            raise AssertionError(f"{argv[0]} does not listen: {log.read_text(errors='replace')[-2000:]}")
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@contextlib.contextmanager
def nginx(
    folder: Path,
    *,
    root: Path | None = None,
    users: str = "",
    replaced: dict[str, str] | None = None,
    server: str = "",
    prefix: tuple[str, ...] = (),
) -> Iterator[str]:
    """Run nginx with WebDAV; give its address without a scheme.

    Args:
        folder: for its files.
        root: folder that it serves, on the file system of which uploads are kept.
        users: content of a password file; anybody may write without one.
        server: another configuration of the server than the tests' own.
        replaced: texts in *server*, with formats of what replaces them: ``port``, ``root``, ``folder``.
        prefix: words before the command, as of `kit.small_disk`, which make it root.
    """
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None or not _DAV_EXT.exists():
        pytest.skip("nginx and its dav-ext module are not installed (nginx, libnginx-mod-http-dav-ext)")
    root, port = root or folder / "www", free_port()
    (root / ".uploads").mkdir(parents=True, exist_ok=True)
    (folder / "users").write_text(users)
    auth = f'auth_basic "wheels"; auth_basic_user_file {folder}/users;' if users else ""
    user = "user root;" if os.geteuid() == 0 or prefix else ""
    for theirs, ours in (replaced or {}).items():
        assert theirs in server
        server = server.replace(theirs, ours.format(port=port, root=root, folder=folder))
    server = server or _NGINX_SERVER.format(port=port, root=root, auth=auth)
    text = _NGINX_CONFIG.format(dav_ext=_DAV_EXT, folder=folder, user=user).replace("@SERVER@", server)
    (folder / "nginx.conf").write_text(text)
    argv: list[str | Path] = [program, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    with process([*prefix, *argv], port, folder / "log"):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def apache(_: Path) -> Iterator[str]:
    """Run Apache with WebDAV; give its address without a scheme."""
    program = shutil.which("apache2") or shutil.which("/usr/sbin/apache2")
    if program is None:
        pytest.skip("Apache is not installed (apache2-bin)")
    # Started by root it serves as another user, who has no access to pytest's folders.
    with tempfile.TemporaryDirectory(prefix="sparkwright-apache-") as name:
        folder, port = Path(name), free_port()
        (folder / "www").mkdir()
        text = _APACHE_CONFIG.format(folder=folder, port=port, root=folder / "www", modules=_APACHE_MODULES)
        if os.geteuid() == 0:
            text += "User www-data\nGroup www-data\n"
            shutil.chown(folder, "www-data")
            shutil.chown(folder / "www", "www-data")
        (folder / "apache.conf").write_text(text)
        with process([program, "-f", folder / "apache.conf", "-DFOREGROUND"], port, folder / "log"):
            yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run moto's S3 server with the bucket ``wheels``; give its address."""
    port = free_port()
    with process([sys.executable, _SUPPORT / "s3_process.py", str(port)], port, folder / "log"):
        address = f"http://127.0.0.1:{port}"
        requests.put(f"{address}/wheels", timeout=60).raise_for_status()
        yield address


def install_gh(folder: Path) -> Path:
    """Put the stand-in for ``gh`` into *folder*; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "gh"
    code = f"import sys; sys.path.insert(0, {str(_SUPPORT)!r}); from gh_stand_in import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -c "{code}" "$@"\n')
    program.chmod(0o755)
    return folder


@dataclass
class ProxyFault:
    """A fault in one request.

    Attributes:
        methods: the requests that it may be.
        status: answer so, and do not forward.
        cut_after: read as many bytes of the request's body, then close the connection.
        cut_answer: forward, then close the connection without an answer.
        flip: forward other bytes of the body.
        silence_s: wait so long before the answer.
    """

    methods: tuple[str, ...] = ("PUT", "POST")
    status: int = 0
    cut_after: int = -1
    cut_answer: bool = False
    flip: bool = False
    silence_s: float = 0


@dataclass
class FaultProxy:
    """A proxy before the server at *upstream* (``host:port``).

    Attributes:
        faults: of the next requests that they are for.
        always: of every request that it is for.
        dropped: names of headers that are not forwarded.
        seen: method and path of each request, and bytes of its body.
    """

    upstream: str
    faults: list[ProxyFault] = field(default_factory=list)
    always: ProxyFault | None = None
    dropped: tuple[str, ...] = ()
    seen: list[tuple[str, str, int]] = field(default_factory=list)
    address: str = ""

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Forwarding,), {"owner": self}))
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault_for(self, method: str) -> ProxyFault:
        for fault in self.faults:
            if method in fault.methods:
                self.faults.remove(fault)
                return fault
        return self.always if self.always and method in self.always.methods else ProxyFault()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Cut connections are what it is for."""


class _Forwarding(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def forward(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        fault = self.owner.fault_for(self.command)
        if 0 <= fault.cut_after < length:
            self.rfile.read(fault.cut_after)
            self.owner.seen.append((self.command, self.path, fault.cut_after))
            self.close_connection = True
            return
        body = bytearray(self.rfile.read(length))
        self.owner.seen.append((self.command, self.path, length))
        if fault.status:
            self.answer(fault.status, [], b"refused")
            return
        time.sleep(fault.silence_s)
        if fault.flip and body:
            body[len(body) // 2] ^= 1
        headers = {name: value for name, value in self.headers.items() if name not in self.owner.dropped}
        if fault.flip:
            headers = {name: value for name, value in headers.items() if name != "Content-MD5"}
        with contextlib.closing(http.client.HTTPConnection(self.owner.upstream, timeout=60)) as connection:
            connection.request(self.command, self.path, bytes(body), {**headers, "Connection": "close"})
            response = connection.getresponse()
            data = response.read()
            if fault.cut_answer:
                self.close_connection = True
                return
            kept = [(name, value) for name, value in response.getheaders()]
            self.answer(response.status, kept, data)

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name not in {"Connection", "Content-Length", "Transfer-Encoding"}:
                self.send_header(name, value)
        length = next((value for name, value in headers if name == "Content-Length"), None)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_MKCOL = do_MOVE = do_PROPFIND = forward  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def opened(address: str, **changed: Any) -> Any:
    """Return the target at *address* with short patience, or with *changed* settings."""
    target: Any = open_target(address)  # every kind of target is a dataclass with settings
    return replace(target, settings=replace(FAST, **changed))


def told(raised: pytest.ExceptionInfo[UploadError], heard: Recorder) -> str:
    """Return all that a user or a log may see of an error."""
    error = raised.value
    return " ".join([str(error), error.next_step, *(event.to_json() for event in heard.events)])
