"""A tiny target and its drafter on one GPU: what the scripts for a card share.

`models` writes the model folders, `load` says what is asked of the server and what must come of it, `install`
checks the installed wheel, `sessions` starts engines that end with their script. `engine` is the process that
serves, `worker` looks into vLLM's worker. `scoring` and `lossless_engine` belong to `lossless_pair.py`;
`caches`, `draft_compare` and `draft_engine` to `draft_kv.py`.
"""
