"""Start programs: `run` them to their end, or in a `session`, within limits, to watch or to talk with."""
