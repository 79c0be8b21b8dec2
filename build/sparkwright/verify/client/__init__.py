"""The client: sends requests, times what comes back, and lets nothing count that did not end as it must.

`request` is the file to open first: one request. `load` sends many, `endpoint` looks at the server before,
`sse` and `reply` read streams, `lag` and `calibrate` say how far the client's own clock can be trusted.
"""

from sparkwright.verify.client.endpoint import (
    Endpoint,
    EndpointFacts,
    check_address,
    check_endpoint,
    open_session,
)
from sparkwright.verify.client.lag import LagProbe
from sparkwright.verify.client.load import arrivals, run_load
from sparkwright.verify.client.request import Exchange, canary, patience
from sparkwright.verify.client.tokens import count_tokens

__all__ = [
    "Endpoint",
    "EndpointFacts",
    "Exchange",
    "LagProbe",
    "arrivals",
    "canary",
    "check_address",
    "check_endpoint",
    "count_tokens",
    "open_session",
    "patience",
    "run_load",
]
