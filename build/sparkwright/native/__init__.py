"""Native kernels: toolchain, dependencies' sources, configure, compile, link, look into the result.

A build works in one folder whose layout is always the same, so that no command and no object
knows where on the machine it was made::

    source/   the native inputs of the merged tree, and what configuring generates beside them
    deps/     one tree for each dependency's source
    cuda/     the CUDA toolkit in its classic layout
    torch/    the target's torch: headers, libraries, CMake files
    python/   headers of the limited API
    build/    objects, dependency files, extensions
"""
