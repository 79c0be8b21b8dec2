"""FlashInfer's kernels, compiled ahead of time into a wheel that it finds by itself.

FlashInfer compiles a kernel with nvcc and ninja when it is first called: while an engine starts, or a request
waits. Installed beside it, a package ``flashinfer_jit_cache`` with the finished library takes its place. Open
`make` first: `build` compiles, for which `asking` has FlashInfer's own generators state sources and commands,
`tree` puts the sources into the store and `compiling` makes libraries by means of `sparkwright.native`.
`wheel` packs them, `package` is what FlashInfer imports, `inspection` audits, and `choosing` picks a wheel
for an environment.
"""
