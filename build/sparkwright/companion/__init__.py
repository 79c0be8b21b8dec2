"""FlashInfer's kernels, compiled ahead of time into a wheel that it finds by itself.

FlashInfer compiles a kernel with nvcc and ninja when it is first called, while a request waits. Installed
beside it, a package ``flashinfer_jit_cache`` with the finished library takes its place. Open `build` first:
`asking` has FlashInfer's own generators state the sources and commands, `ninja` reads them, `tree` puts the
sources into the store, `compiling` builds the libraries with the machinery of `sparkwright.native`, `wheel`
packs them, `inspection` looks into the result and `finding` asks an installed FlashInfer if it takes them.
"""
