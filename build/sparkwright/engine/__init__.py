"""One running vLLM: start it, read its log, send requests to it, and read its counters.

`serve`, `rehearsal`, `search` and `verify` share it. Open `server` for the process and `client` for requests.
"""
