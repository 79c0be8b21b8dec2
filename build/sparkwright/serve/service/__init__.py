"""Served recipes as services that come back after a reboot: units of systemd, upgrade, rollback.

Read `model` first, then `files`, which plans them by templates, and `change`, which changes wheels.
"""

from sparkwright.serve.service.change import Slots, SystemdManager, canary_failure, roll_back, upgrade
from sparkwright.serve.service.files import (
    InstallPlan,
    apply_plan,
    make_key,
    plan_install,
    run_all,
    uninstall,
)
from sparkwright.serve.service.model import ServiceOptions, ServicePlaces, ServiceRecord, load_record

__all__ = [
    "InstallPlan",
    "ServiceOptions",
    "ServicePlaces",
    "ServiceRecord",
    "Slots",
    "SystemdManager",
    "apply_plan",
    "canary_failure",
    "load_record",
    "make_key",
    "plan_install",
    "roll_back",
    "run_all",
    "uninstall",
    "upgrade",
]
