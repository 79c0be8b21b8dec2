"""The client: sends requests, times the responses, and counts only those that ended correctly.

Read `request` first: one request. `load` sends many, `endpoint` checks the server beforehand, `sse` and
`reply` read streams, `lag` measures how late the client's own loop is.
"""

from sparkwright.engine.client.endpoint import (
    Endpoint,
    EndpointFacts,
    check_address,
    check_endpoint,
    open_session,
)
from sparkwright.engine.client.lag import LagProbe
from sparkwright.engine.client.load import run_load
from sparkwright.engine.client.request import Exchange, canary, patience
from sparkwright.engine.client.tokens import count_tokens

__all__ = [
    "Endpoint",
    "EndpointFacts",
    "Exchange",
    "LagProbe",
    "canary",
    "check_address",
    "check_endpoint",
    "count_tokens",
    "open_session",
    "patience",
    "run_load",
]
