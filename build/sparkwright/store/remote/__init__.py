"""A second tier of the store on another machine: results and downloads that several machines share.

The layout is that of Bazel's HTTP caches: ``cas/<sha256>`` holds files, ``ac/<sha256 of kind and key>`` the
records that name them. Open `tier` first; `sparkwright.store.paths` asks it on a local miss and tells it of
new results.
"""

from sparkwright.store.remote.settings import RemoteSettings, read_remote_settings
from sparkwright.store.remote.tier import RemoteTier, open_remote

__all__ = ["RemoteSettings", "RemoteTier", "open_remote", "read_remote_settings"]
