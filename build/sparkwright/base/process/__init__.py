"""Start programs: run them to their end, within limits, or in a session that outlives no caller.

Open `run` first. `session` starts programs in the background and kills those that exceed limits, and
`dialogue` talks with one while it runs.
"""
