"""HTTP servers in this process."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """Ignores clients that hang up or are killed: tests do both."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        pass

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def serving(handler: Callable[..., Any], **state: Any) -> Iterator[Server]:
    """Serve by *handler* on the loopback interface inside the block; *state* are attributes of the server."""
    with Server(("127.0.0.1", 0), handler) as server:
        vars(server).update(state)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
