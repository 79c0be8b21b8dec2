"""A folder of wheels as a static index that pip and uv read, and signed channels; open `index` first."""
