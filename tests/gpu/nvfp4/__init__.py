"""What `nvfp4_split.py` is made of: one attention layer without a model, a coder by tables, and a clock."""
