"""Served recipes as services that come back after a reboot: systemd units, compose files, upgrade, rollback.

Read `model` first, then `install`, which plans the files, and `upgrade`, which changes wheels.
"""

from sparkwright.serve.service.install import InstallPlan, apply_plan, plan_install, plan_uninstall, run_all
from sparkwright.serve.service.keys import make_key
from sparkwright.serve.service.manager import ServiceManager, SystemdManager, canary_failure
from sparkwright.serve.service.model import ServiceOptions, ServicePlaces, ServiceRecord, load_record
from sparkwright.serve.service.slots import Slots
from sparkwright.serve.service.upgrade import roll_back, upgrade

__all__ = [
    "InstallPlan",
    "ServiceManager",
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
    "plan_uninstall",
    "roll_back",
    "run_all",
    "upgrade",
]
