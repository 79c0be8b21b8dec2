"""A run by the protocol of llama-benchy: its requests, its aggregates by its definitions, and its table.

Read `options` for what a protocol is, `check` for the cells, `figures` for the definitions and `table` for
the forms in which users publish the results.
"""
