"""A program: write the weights of a GGUF file as transformers keeps them, in bfloat16.

It runs in the environment of a rehearsal, which has transformers; nothing here is imported by the tool.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def write_model(source: Path, target: Path) -> None:
    """Read the GGUF file *source* and write model and tokenizer into the folder *target*."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    read = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    # A model that was read from GGUF counts as quantised, and is not saved; its weights are plain by now.
    plain = transformers.AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), Path(sys.argv[2]))
