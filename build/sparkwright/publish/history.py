"""The generations of a channel, newest first."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import TamperedError, UnknownNameError
from sparkwright.publish.channel import (
    POINTER,
    ChannelState,
    decode_state,
    generation_folder,
    pointer_path,
    require_channel_name,
)
from sparkwright.publish.signing import CHANNEL_TYPE, open_envelope
from sparkwright.publish.target import Target


def read_history(target: Target, channel: str) -> Iterator[ChannelState]:
    """Yield the generations of *channel*, the newest first; no signature is verified.

    Raises:
        UnknownNameError: there is no such channel.
        SignatureError: its pointer is damaged.
        TamperedError: a generation is missing, or was changed.
    """
    path = pointer_path(require_channel_name(channel))
    stored = target.read(path)
    if stored is None:
        raise UnknownNameError(
            f"there is no channel {channel} at {target.url(path)}",
            next_step=f"sparkwright channel promote WHEEL --to {channel} makes it",
        )
    payload = open_envelope(stored.data, CHANNEL_TYPE, f"the pointer of {channel}").payload
    return generations_of(target, decode_state(payload, channel, f"the pointer of {channel}"))


def generations_of(target: Target, state: ChannelState) -> Iterator[ChannelState]:
    """Yield *state* and the kept generations before it, each held to the digest that its successor names.

    Raises:
        SignatureError: one is damaged.
        TamperedError: one is missing, or was changed.
    """
    yield state
    oldest = state.first_kept
    while state.previous and state.generation > oldest:
        folder = generation_folder(state.channel, state.generation - 1, state.previous)
        what = f"generation {state.generation - 1} of {state.channel}"
        stored = target.read(f"{folder}/{POINTER}")
        payload = open_envelope(stored.data, CHANNEL_TYPE, what).payload if stored else b""
        if sha256_bytes(payload) != state.previous:
            raise TamperedError(
                f"{what} is not what its successor names",
                because=f"{folder}/{POINTER} is missing" if stored is None else "its SHA-256 is another",
                next_step="take it from another copy of the target",
            )
        state = decode_state(payload, state.channel, what)
        yield state


def content_of(state: ChannelState, generations: dict[int, ChannelState]) -> int:
    """Return the generation whose content *state* has: rollbacks and renewals add none of their own.

    Of a content whose generation is not kept any longer, the oldest kept generation with it is returned.
    """
    while True:
        match state.action.kind:
            case "rollback":
                earlier = state.action.to
            case "renew" | "status" | "prune":
                earlier = state.generation - 1
            case _:
                return state.generation
        if earlier not in generations:
            return state.generation
        state = generations[earlier]
