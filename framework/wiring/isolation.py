"""Build and run the process that starts the processes of isolated jobs, and a job's process with an interpreter of its own.

``IsolatedRuns`` of a worker process starts it: ``python -m framework.wiring.isolation server|job DESCRIPTORS OPTIONS``.
"""

import gc
import json
import os
import socket
import sys
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from framework import middleware
from framework.all_settings import load
from framework.declare import registry
from framework.errors import JobProcessError
from framework.features.isolation.channel import SERVER_MODULE
from framework.features.isolation.job_process import JobTools, run_job
from framework.features.isolation.server import JobServer
from framework.push.argument_checks import StrictArgumentsCheck
from framework.wiring.client import connect


def main(role: str, descriptors: str, options: str) -> None:
    """Run as the process that starts others (``server``), or as that of one job (``job``), over open sockets."""
    connection, *stacks = (socket.socket(fileno=int(one)) for one in descriptors.split(","))
    for one in (connection, *stacks):
        one.set_inheritable(False)
    chosen: Mapping[str, Any] = json.loads(options)
    sys.path[:] = chosen["path"]
    tools = cache(partial(load_tools, chosen["modules"]))
    if role == "job":
        run_job(connection, stacks[0], tools)
    tools()
    # The memory of what is loaded stays shared with the processes of jobs.
    gc.freeze()
    JobServer(connection, partial(run_job, load=tools), partial(start_interpreter, options)).run()


def load_tools(modules: list[str]) -> JobTools:
    """Load the workers and connect their pushes; what fails is the failure of each job. Opens no socket."""
    strictness, level = StrictArgumentsCheck(), "info"
    try:
        settings = load()
        strictness, level = StrictArgumentsCheck(settings.strict_arguments), settings.logging.level
        registry.load(modules)
        connect(settings)
        # Here, so that the processes of jobs share it.
        return JobTools(middleware.server.compile(), strictness, level, settings)
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, and the worker process must know it
        found = ", ".join(modules) or "the configuration"
        failure = JobProcessError(found, f"a process for isolated jobs cannot load them: {error}")
        failure.__cause__ = error
        return JobTools((), strictness, level, failure=failure)


def start_interpreter(options: str, job: socket.socket, stacks: socket.socket) -> int:
    """Start a new interpreter for one job; return its process id. Raises OSError."""
    for one in (job, stacks):
        one.set_inheritable(True)
    command = [sys.executable, "-P", "-m", SERVER_MODULE, "job", f"{job.fileno()},{stacks.fileno()}", options]
    return os.posix_spawn(sys.executable, command, os.environ)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
