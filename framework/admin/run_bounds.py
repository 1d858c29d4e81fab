"""Say when the run of a job ends at the latest, and where it runs."""

from framework.declare.declaration import Declaration
from framework.execute.timeouts import timeout_of
from framework.text import format_duration
from framework.types import Payload


def end_of_run(payload: Payload, declaration: Declaration | None) -> str:
    """Return what ends a running job. Without its class only a timeout in the payload is known."""
    timeout_s = timeout_of(declaration, payload)
    bound = "" if timeout_s is None else f", or its timeout of {format_duration(timeout_s)}"
    place = (
        "; it runs in a process of its own"
        if declaration is not None and declaration.facts.get("isolation") == "process"
        else ""
    )
    return f"its end{bound}{place}"
