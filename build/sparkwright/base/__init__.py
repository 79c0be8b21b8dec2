"""The lowest layer: errors, events, configuration, digests, and processes."""
