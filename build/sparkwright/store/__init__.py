"""The content-addressed store: files by SHA-256, trees by git id, small results by key.

Nothing appears under its final name before it is complete and verified, so a run that is
killed leaves at worst a scratch entry that the next run sweeps away.

`survey`, `verify` and `prune` are for looking after it.
"""

from sparkwright.store.atomic import atomic_file, storing, write_atomically
from sparkwright.store.locks import hold
from sparkwright.store.paths import Store, default_home, open_store
from sparkwright.store.removal import remove_tree
from sparkwright.store.usage import ActiveRun, note_use

__all__ = [
    "ActiveRun",
    "Store",
    "atomic_file",
    "default_home",
    "hold",
    "note_use",
    "open_store",
    "remove_tree",
    "storing",
    "write_atomically",
]
