"""The server under test: its process, and the facts in its log.

Read `launch` first: `start_server` takes a recipe. `lifecycle` runs a server, `bootlog` reads its log,
`failures` explains and records a failed one.
"""
