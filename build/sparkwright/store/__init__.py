"""The content-addressed store: files by SHA-256, trees by git id, small results by key.

Nothing appears under its final name before it is complete and verified, so a run that is
killed leaves at worst a scratch entry that the next run sweeps away.

Open `paths` first: `disk` writes and locks, `usage` notes what runs use, `upkeep` is for looking after it.
"""
