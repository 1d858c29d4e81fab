"""Describe an installation to systemd: a unit for each set of processes, and one for the exporter."""

import shlex
from pathlib import PurePosixPath

from framework.features.deployment.kubernetes import exporter_arguments, groups_text, url_variables
from framework.features.deployment.worker_sets import DeploymentPlan, WorkerSet

_UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
User={name}
WorkingDirectory={folder}/current
# The name of the release that the link leads to is read again at each rolling restart.
Environment=PWD={folder}/current
Environment=FRAMEWORK_ENV=production
# The only folder that the process may write, beside its own /tmp: kept pushes are there.
StateDirectory={name}
Environment=FRAMEWORK_VAR_DIR=/var/lib/{name}
# Freed memory goes back to the system.
Environment=MALLOC_ARENA_MAX=2
{service}
Restart=on-failure
RestartSec=2
# A restart does not repair an invalid configuration.
RestartPreventExitStatus=2 78
NoNewPrivileges=true
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
PrivateDevices=true
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectControlGroups=true
RestrictSUIDSGID=true
LockPersonality=true

[Install]
WantedBy=multi-user.target
"""

_WORKERS = """\
# The URLs of Redis; readable by root only.
EnvironmentFile=/etc/{name}/environment
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -USR2 $MAINPID
# Only the supervisor gets the signal, and signals its children; at the end systemd kills remaining processes.
KillMode=mixed
TimeoutStartSec=120
TimeoutStopSec={stop_s}
WatchdogSec=30"""

_EXPORTER = """\
# The URLs of Redis, of users with the rights of the role read-only.
EnvironmentFile=/etc/{name}/exporter-environment
{groups}
Type=exec
ExecStart={command}"""


def unit_files(plan: DeploymentPlan, name: str, folder: PurePosixPath) -> dict[str, str]:
    """Return the units and an example of their environment, by the names of the files.

    ``folder`` has the virtual environment ``venv`` and the link ``current`` to the release.
    """
    units = {f"{name}-{one.name}.service": _worker_unit(one, name, folder) for one in plan.sets}
    groups = _word(f"FRAMEWORK_FLEET__QUEUE_GROUPS={groups_text(plan)}")
    service = _EXPORTER.format(
        name=name, groups=f"Environment={groups}", command=_command(exporter_arguments("127.0.0.1"), folder)
    )
    units[f"{name}-exporter.service"] = _UNIT.format(
        description=f"Figures of the jobs of {name}", name=name, folder=folder, service=service
    )
    units["environment.example"] = "".join(f"{key}={value}\n" for key, value in url_variables(plan).items())
    return units


def _worker_unit(one: WorkerSet, name: str, folder: PurePosixPath) -> str:
    command = _command(one.arguments(), folder)
    service = _WORKERS.format(name=name, command=command, stop_s=one.stop_s)
    description = f"Jobs of the queue group {one.group} on the shard {one.shard}"
    return _UNIT.format(description=description, name=name, folder=folder, service=service)


def _command(arguments: list[str], folder: PurePosixPath) -> str:
    return " ".join([f"{folder}/venv/bin/{arguments[0]}", *map(_word, arguments[1:])])


def _word(text: str) -> str:
    """Return the text as one word of a unit, in which % and $ have a meaning."""
    return shlex.quote(text.replace("%", "%%").replace("$", "$$"))
