"""Measure what a KV cache's format costs a trained model, on the CPU. Start with `__main__`."""
