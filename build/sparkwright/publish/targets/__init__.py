"""Places that wheels and channels are published to, by address; open `addresses` first."""

from sparkwright.publish.targets.addresses import open_target

__all__ = ["open_target"]
