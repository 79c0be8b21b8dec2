"""A folder of wheels as a static index that pip and uv read; open `index` first."""

from sparkwright.publish.folder import dist_folder
from sparkwright.publish.index import PublishedFile, PublishedIndex, publish, require_plain, wheels_in

__all__ = [
    "PublishedFile",
    "PublishedIndex",
    "dist_folder",
    "publish",
    "require_plain",
    "wheels_in",
]
