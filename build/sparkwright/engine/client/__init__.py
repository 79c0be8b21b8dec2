"""The client: sends requests, times the responses, and counts only those that ended correctly.

Read `request` first: one request. `load` sends many, `endpoint` checks the server beforehand, `stream` and
`reply` read what comes.
"""
