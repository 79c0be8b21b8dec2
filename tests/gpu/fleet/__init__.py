"""Tiny models of the fleet's architectures: what `serve_fleet.py` is made of.

Open `matrix` first: the cells, what must come of each, and their order. `shapes` has configurations and names
of weights, `tensors` writes them, `load` has the requests, `engine` is the process that serves, `view` looks
into vLLM's worker, `judge` says what is wrong with a cell. Only `engine` and `view` import vLLM.
"""
