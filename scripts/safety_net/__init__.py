"""The safety net of the slimming: what a checkout does, recorded, and compared with a later checkout.

It is removed when the slimming is done.
"""
