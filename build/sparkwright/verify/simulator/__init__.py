"""A simulated vLLM server with speculative decoding and faults that can be switched on.

Read `engine` first: a scheduler and a model, step by step, without clock or network. `server` serves it over
HTTP, `stream` streams one response, `faults` holds the faults, `main` is the command.
"""
