"""A second tier of the store on another machine: results and downloads that several machines share.

The layout is that of Bazel's HTTP caches: ``cas/<sha256>`` holds files, ``ac/<sha256 of kind and key>`` the
records that name them. Open `tier` first: `sparkwright.store.paths` reads by it on a local miss, and writes
new results by it.
"""

from sparkwright.store.remote.settings import RemoteSettings, read_remote_settings
from sparkwright.store.remote.tier import RemoteTier

__all__ = ["RemoteSettings", "RemoteTier", "read_remote_settings"]
