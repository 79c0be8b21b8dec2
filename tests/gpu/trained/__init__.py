"""Parts of `trained_drafter.py`: train a DFlash drafter in place, and measure what engines accept of it."""
