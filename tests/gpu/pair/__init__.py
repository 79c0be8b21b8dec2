"""A tiny target and its drafter on one GPU: what `serve_pair.py` is made of.

`models` writes the two model folders, `load` says what is asked of the server and what must
come of it, `install` checks the installed wheel, `engine` is the process that serves, and
`worker` looks into vLLM's worker. `kernels` is a process that lets compiled kernels compute. For
`draft_attention.py`, `attention` lets attention backends compute, `judge` says what must come of it, and
`draft` looks into the drafter and compares drafters. For `lossless_pair.py`, `scoring` has the cases and what
must come of them, and `lossless_engine` is the process that serves. Only `engine`, `lossless_engine`,
`worker`, `kernels`, `attention` and `draft` import vLLM.
"""
