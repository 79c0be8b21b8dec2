"""A stored reference of one checkpoint: greedy answers with the probabilities of their tokens.

`record` is the file's model, `make` asks a server for one, `identity` refuses a server of another model.
The check that compares a server with it is `verify.checks.reference`.
"""

from sparkwright.verify.reference.identity import identify, require_same_model
from sparkwright.verify.reference.record import (
    ModelIdentity,
    Reference,
    load_reference,
    reference_digest,
    write_reference,
)

__all__ = [
    "ModelIdentity",
    "Reference",
    "identify",
    "load_reference",
    "reference_digest",
    "require_same_model",
    "write_reference",
]
