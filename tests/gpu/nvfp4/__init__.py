"""An NVFP4 KV cache on vLLM's Triton backend, on one GPU: what `nvfp4_kv.py` is made of.

Each part is a module with `run(spec, record)` and a process of its own. `pack` and `attention` compare with
`coder` and `reference`, which are written from the definitions; `speed` times; `serve` and `quality` run
engines. `rig` is one attention layer without a model, `record` the lines that are left behind, `chart` draws.
"""
