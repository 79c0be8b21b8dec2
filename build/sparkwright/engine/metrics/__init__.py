"""The server's own counters: parsed exactly, compared, and checked against the clients' counts.

Read `counters` first: it computes the speculation between two `MetricsSnapshot`s, and finds where counters
contradict each other or the clients. `snapshot` parses Prometheus text, `scrape` fetches it.
"""
