"""FlashInfer's kernels, compiled ahead of time into a wheel that it finds by itself.

FlashInfer compiles a kernel with nvcc and ninja when it is first called: while an engine starts, or a request
waits. Installed beside it, a package ``flashinfer_jit_cache`` with the finished library takes its place. Open
`build` first: `generators` has FlashInfer's own state sources and commands, and `sparkwright.native` compiles
them. `wheel` packs, reads and chooses companions, and `inspection` audits them.
"""
