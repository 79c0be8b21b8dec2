"""``upstream.lock``: the exact vLLM that we build on, and every other input by digest."""

from sparkwright.lock.model import LOCK_FORMAT, Artifact, Dependency, Lock, Release, read_lock

__all__ = ["LOCK_FORMAT", "Artifact", "Dependency", "Lock", "Release", "read_lock"]
