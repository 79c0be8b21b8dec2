"""Builds, proves, publishes and verifies patched vLLM wheels for DGX Spark.

The rooms of this package, ground floor first, and what each owns are listed in
``docs/architecture.md``; arrows between them point down only, and a test holds them to it.
"""

__version__ = "0.1.0"
