"""Preflight: find out that a server would not start, or the host not survive it, before weights are read.

Open `run` first: `run_preflight` collects the findings, `inspect_start` the memory budget too. `checkpoint`,
`hub`, `machine` and `link` read facts, which `facts` puts together; `files`, `drafter`, `engine_checks` and
`memory` judge them. `kv_plan` repeats vLLM's layout of the KV cache; ``findings.toml`` has every text.
"""
