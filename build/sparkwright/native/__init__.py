"""Native kernels: toolchain, dependencies' sources, configure, compile, link, inspect the result.

A build works in one folder whose layout is always the same, so that no command and no object
depends on its place on the machine::

    source/   the native inputs of the merged tree, and the files that CMake generates beside them
    deps/     one tree for each dependency's source
    cuda/     the CUDA toolkit in its classic layout
    torch/    the target's torch: headers, libraries, CMake files
    python/   headers of the limited API
    build/    objects, dependency files, extensions
"""
