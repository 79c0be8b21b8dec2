"""A folder of the store that is taken while another run prunes: it stays, or is seen to be gone."""

import os
import threading
import time

import pytest

from sparkwright.store.upkeep import PruneLimits, prune, survey

OLD = time.time() - 9 * 86400


@pytest.mark.parametrize("looked", [False, True], ids=["before the look", "after it"])
def test_a_folder_that_is_claimed_stays_or_is_seen_to_be_gone(store, monkeypatch, *, looked):
    folder = store.trees / "abc-vllm"
    folder.mkdir()
    os.utime(folder, (OLD, OLD))
    claimed: list[bool] = []
    claiming = threading.Thread(target=lambda: claimed.append(store.claim(folder)))

    def claim_now(*_: object, **__: object) -> None:
        claiming.start()
        claiming.join(0.2)
        assert not claimed, "it was claimed while it was being removed"

    entries = survey(store, ())
    with store.running():
        if looked:
            monkeypatch.setattr("sparkwright.store.upkeep.emit", claim_now)
        else:
            claiming.start()
            claiming.join()
        prune(store, entries, PruneLimits(1))
    claiming.join()
    assert claimed == [not looked]
    assert folder.is_dir() is not looked
