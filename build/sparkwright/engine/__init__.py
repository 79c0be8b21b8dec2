"""One vLLM: make the environment of a wheel, start a server, read its log and counters, and send it requests.

`serve`, `rehearsal`, `search` and `verify` share it. Open `environment` first: `prepare` is the way from a
wheel to an interpreter. `server.launch` starts it, `client` sends requests, `metrics` reads the counters.
"""
