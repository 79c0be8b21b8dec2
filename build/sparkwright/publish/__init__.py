"""Publishes wheels as a static index that pip and uv read."""

from sparkwright.publish.index import PublishedIndex, publish, require_plain, wheels_in
from sparkwright.publish.pages import PublishedFile

__all__ = ["PublishedFile", "PublishedIndex", "publish", "require_plain", "wheels_in"]
