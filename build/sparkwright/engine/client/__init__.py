"""The client: sends requests, times the responses, and counts only those that ended correctly.

Read `request` first: one request. `load` sends many, `endpoint` checks the server beforehand, `sse` and
`reply` read streams, `lag` measures how late the client's own loop is.
"""
