"""The unit of systemd for a served recipe.

The watchdog itself (`serve.supervise`) starts a wedged engine again, with delays that grow. systemd starts
the watchdog again where that ended by an error, and gives up after a few times an hour.
"""

from __future__ import annotations

from sparkwright.engine.server import BOOT_S
from sparkwright.serve.service.model import ServiceOptions, ServicePlaces
from sparkwright.serve.warmup import LIMIT_S

# Exit codes that another start does not cure: formats, names, options, preflight, recipes.
_FINAL = (2, 10, 11, 12, 13, 14, 76, 81, 82)
# The watchdog has limits of its own for a boot and its warm-up. It has the time extended while a model is
# fetched, which has none.
_START_S = round(BOOT_S + LIMIT_S)

_SANDBOX = """
# What runs here loads CUDA, compiles kernels and reads models. So these are not set: PrivateDevices
# (/dev/nvidia*), MemoryDenyWriteExecute (compilers write code), ProtectProc (the watchdog reads /proc),
# PrivateNetwork and SystemCallFilter (the driver's ioctls).
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
UMask=0077
"""
_SYSTEM_SANDBOX = """CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateTmp=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
"""


def command_line(options: ServiceOptions, places: ServicePlaces) -> tuple[str, ...]:
    """Return the command of the service; the key's path in it is that of the credential."""
    words = [str(options.program), "serve", options.recipe, "--watch", "--state", str(places.health)]
    words += ["--python", str(places.state / "current" / "bin" / "python")]
    words += ["--host", options.host, "--port", str(options.port)]
    if options.use:
        words += ["--use", options.use]
    for setting in options.settings:
        words += ["--set", setting]
    words += ["--offline"] if options.offline else []
    words += ["--force"] if options.force else []
    return tuple(words)


def unit_text(options: ServiceOptions, places: ServicePlaces) -> str:
    """Return the unit's text."""
    system = options.scope == "system"
    network = ("Wants=network-online.target", "After=network-online.target nvidia-persistenced.service")
    lines = [
        "[Unit]",
        f"Description=vLLM serving {_escaped(options.recipe)}, started and watched by sparkwright",
        "Documentation=https://github.com/sparkwright/sparkwright",
        *(network if system else ()),
        "StartLimitIntervalSec=1h",
        "StartLimitBurst=5",
        "",
        "[Service]",
        *_service(options, places, system=system),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if system else 'default.target'}",
        "",
    ]
    return "\n".join(lines)


def _service(options: ServiceOptions, places: ServicePlaces, *, system: bool) -> list[str]:
    variables = {
        "SPARKWRIGHT_HOME": str(places.store),
        # Environments are not the service's to write, and their modules are not compiled when installed.
        "PYTHONPYCACHEPREFIX": str(places.store / "bytecode"),
        "HF_HOME": options.models or str(places.models),
    }
    return [
        # Ready once a request got tokens, and watched from then on.
        "Type=notify",
        "NotifyAccess=main",
        "ExecStart=" + " ".join(map(_argument, command_line(options, places))) + " --api-key-file %d/api-key",
        f"LoadCredential=api-key:{_escaped(str(places.key))}",
        f"EnvironmentFile=-{_escaped(str(places.variables))}",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items()),
        f"WorkingDirectory={_escaped(str(places.state))}",
        *((f"User={options.run_as}",) if system else ()),
        "Restart=on-failure",
        "RestartSec=30s",
        f"RestartPreventExitStatus={' '.join(map(str, _FINAL))}",
        f"TimeoutStartSec={_START_S}s",
        "TimeoutStopSec=90s",
        "WatchdogSec=3min",
        # The engine ends by its own parent, which keeps evidence; what is left after that is killed.
        "KillMode=mixed",
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=65536",
        "TasksMax=8192",
        # GPU and host share one memory: when it runs out, this ends before ssh and the desktop do.
        "OOMScoreAdjust=500",
        "OOMPolicy=kill",
        f"SyslogIdentifier=sparkwright-{options.name}",
        *_SANDBOX.rstrip().splitlines(),
        *(_SYSTEM_SANDBOX.rstrip().splitlines() if system else ()),
        *(f"ReadWritePaths={_quoted(str(path))}" for path in places.written if system),
        *((f"ReadWritePaths={_quoted(options.models)}",) if system and options.models else ()),
    ]


def sysusers_text(options: ServiceOptions) -> str:
    """Return the declaration of the user that the service runs as (sysusers.d(5))."""
    return f'u {options.run_as} - "Serves models by sparkwright" /var/lib/sparkwright\n'


def _escaped(text: str) -> str:
    """Return *text* with systemd's specifiers escaped."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """Return *word* as one word of a line that takes several (systemd.syntax(7))."""
    text = _escaped(word)
    if text and not set(text) & set(" \t\"'\\;"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _argument(word: str) -> str:
    """Return *word* as an argument of a command, where variables would be expanded."""
    return _quoted(word.replace("$", "$$"))
