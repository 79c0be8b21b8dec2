"""The ``[native]`` tables for another release: everything that a program can find out.

Open `proposal` first. `toolkit` chooses the packages by torch's own pins, `dependencies` finds the
sources' trees, `targets` reads the extensions that CMake declares, and `measured` takes binaries and costs
from what was compiled. A value that a person has to decide becomes a `Decision`.
"""
