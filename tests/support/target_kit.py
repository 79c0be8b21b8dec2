"""A proxy with faults before a server of wheels, and what asks the server itself."""

import contextlib
import http.client
import time
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest
from http_server import Handler, serving
from kit import Recorder

from sparkwright.base.errors import UploadError
from sparkwright.publish.places import open_target
from sparkwright.upstream.network import IndexSettings

SECRET = "secret-of-the-test"  # noqa: S105 - it opens nothing
FAST = IndexSettings(timeout_s=10, attempts=3, backoff_s=0.01)


def s3_client(server: str) -> Any:
    """Return a client of the stand-in, which takes any key."""
    import boto3

    return boto3.client("s3", endpoint_url=server, aws_access_key_id="x", aws_secret_access_key=SECRET)


def make_public(server: str) -> None:
    """Let everybody read every object: moto knows no policy for reading."""
    client = s3_client(server)
    client.put_bucket_acl(Bucket="wheels", ACL="public-read")
    for item in client.list_objects_v2(Bucket="wheels").get("Contents", ()):
        client.put_object_acl(Bucket="wheels", Key=item["Key"], ACL="public-read")


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
        self._stack = contextlib.ExitStack()
        server = self._stack.enter_context(serving(type("Owned", (_Forwarding,), {"owner": self})))
        self.address = server.url.removeprefix("http://")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fault_for(self, method: str) -> ProxyFault:
        for fault in self.faults:
            if method in fault.methods:
                self.faults.remove(fault)
                return fault
        return self.always if self.always and method in self.always.methods else ProxyFault()


class _Forwarding(Handler):
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
        dropped = {name.lower() for name in self.owner.dropped}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
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


def opened(address: str, **changed: Any) -> Any:
    """Return the target at *address* with short patience, or with *changed* settings."""
    target: Any = open_target(address)  # every kind of target is a dataclass with settings
    return replace(target, settings=replace(FAST, **changed))


def told(raised: pytest.ExceptionInfo[UploadError], heard: Recorder) -> str:
    """Return all that a user or a log may see of an error."""
    error = raised.value
    return " ".join([str(error), error.next_step, *(event.to_json() for event in heard.events)])
