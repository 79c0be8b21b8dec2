"""The generations of a channel, newest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparkwright.publish.channel import STATE, ChannelState, decode_state, generation_folder
from sparkwright.publish.target import require_signed


def generations_of(read: Callable[[str], bytes | None], state: ChannelState) -> Iterator[ChannelState]:
    """Yield *state* and the kept generations before it, each held to the digest that its successor names.

    Args:
        read: returns the file at a path of the target, or `None`.
        state: the newest one.

    Raises:
        SignatureError: one is damaged.
        TamperedError: one is missing, or was changed.
    """
    yield state
    oldest = state.oldest
    while state.previous and state.generation > oldest:
        folder = generation_folder(state.channel, state.generation - 1, state.previous)
        what = f"generation {state.generation - 1} of {state.channel}"
        path, otherwise = f"{folder}/{STATE}", "take it from another copy of the target"
        payload = require_signed(read(path), state.previous, what, path, otherwise)
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
