"""Served recipes as services that come back after a reboot: units of systemd, upgrade, rollback.

Read `model` first, then `files`, which plans them by templates, and `change`, which changes wheels.
"""
