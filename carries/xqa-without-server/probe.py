"""Does a web request decide which kernels run on 12.x?

XQA is compiled on the machine, and it is all of "TRT-LLM attention" that cards of 12.x have.
`supports_trtllm_attention` is asked for each phase on cards of several generations, with a server that
answers, refuses or cannot be reached.

Controls: cards that do fetch kernels, and batch-invariant mode, which uses none of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import requests
from probekit import expect
from vllm.platforms.interface import DeviceCapability
from vllm.utils import flashinfer as upstream

CARDS = {
    (8, 0): "none",
    (9, 0): "decode",
    (10, 0): "both",
    (10, 3): "both",
    (12, 0): "decode",
    (12, 1): "decode",
}
ANSWERS: dict[str, Any] = {
    "answers": lambda: SimpleNamespace(status_code=200),
    "refuses": lambda: SimpleNamespace(status_code=403),
    "cannot be reached": lambda: (_ for _ in ()).throw(requests.exceptions.ConnectionError("no network")),
}


class Card:
    """A platform with a card of this capability."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = DeviceCapability(*capability)

    def is_device_capability(self, capability: int, device_id: int = 0) -> bool:
        """Tell if it is exactly that."""
        del device_id
        return self.capability.to_int() == capability

    def is_device_capability_family(self, capability: int, device_id: int = 0) -> bool:
        """Tell if it is of that family."""
        del device_id
        return self.capability.to_int() // 10 == capability // 10


def asked(capability: tuple[int, int], answer: str, *, invariant: bool = False) -> tuple[str, int]:
    """Return the phases with TRT-LLM attention, and how many requests were sent."""
    sent: list[str] = []

    def get(address: str, **_: object) -> Any:
        sent.append(address)
        return ANSWERS[answer]()

    for name in ("has_nvidia_artifactory", "supports_trtllm_attention"):
        getattr(upstream, name).cache_clear()
    with (
        mock.patch.object(upstream, "current_platform", Card(capability)),
        mock.patch.object(upstream, "has_flashinfer_cubin", return_value=False),
        mock.patch.object(upstream.requests, "get", get),
        mock.patch.dict("os.environ", {"VLLM_BATCH_INVARIANT": str(int(invariant))}),
    ):
        phases = tuple(upstream.supports_trtllm_attention(is_prefill=prefill) for prefill in (False, True))
    return {(False, False): "none", (True, False): "decode", (True, True): "both"}.get(
        phases, str(phases)
    ), len(sent)


def probe() -> None:
    """Check the controls first."""
    for capability, phases in CARDS.items():
        found, _ = asked(capability, "answers")
        expect(found == phases, f"{capability}, the server answers: {found} instead of {phases}")
        for answer in ANSWERS:
            found, sent = asked(capability, answer, invariant=True)
            expect((found, sent) == ("none", 0), f"{capability}, batch invariant: {found}, {sent} requests")
            if capability[0] < 12 and answer != "answers":
                found, sent = asked(capability, answer)
                expect(
                    (found, sent) == ("none", 1),
                    f"{capability}, the server {answer}: {found}, {sent} requests",
                )
    for capability in ((12, 0), (12, 1)):
        for answer in reversed(ANSWERS):
            found, sent = asked(capability, answer)
            expect(found == "decode", f"{capability}, the server {answer}: {found} instead of decode")
            expect(not sent, f"{capability}: {sent} requests")
