"""The server's own counters: parsed exactly, compared, and checked against the clients' counts.

Read `counters` first: it computes the speculation between two `MetricsSnapshot`s. `exposition` parses
Prometheus text, `snapshot` selects vLLM's series, `scrape` fetches them, and `identities` finds where
counters contradict each other or the clients.
"""
