"""Draw a workflow as a Mermaid graph."""

from collections.abc import Iterator

from framework.declare.workflow_port import StepStatus, WorkflowStatus
from framework.text import visible

_COLOURS = {
    "waiting": "fill:#eeeeee,stroke:#999999,color:#333333",
    "starting": "fill:#fff3cd,stroke:#b58900,color:#333333",
    "running": "fill:#cfe2ff,stroke:#0d6efd,color:#333333",
    "succeeded": "fill:#d1e7dd,stroke:#198754,color:#333333",
    "failed": "fill:#f8d7da,stroke:#dc3545,color:#333333",
    "cancelled": "fill:#e2e3e5,stroke:#6c757d,color:#333333",
    "skipped": "fill:#ffffff,stroke:#cccccc,color:#999999,stroke-dasharray:4",
}

_PLAIN = frozenset(" _-.,:/()")
"""Characters that have no meaning in Mermaid's texts and in HTML. All others are written as their numbers."""


def mermaid(status: WorkflowStatus) -> Iterator[str]:
    """Yield the lines of a flowchart: a node for each step, whose class is its state; a dashed line leads to a branch."""
    # A name may be a word of Mermaid, such as `end`.
    nodes = {one.name: f"s{number}" for number, one in enumerate(status.steps, 1)}
    yield "flowchart LR"
    for one in status.steps:
        yield f'    {nodes[one.name]}["{mermaid_text(one.name)}<br>{counts(one)}"]:::{_class_of(one)}'
    for one in status.steps:
        # A definition that was changed in Redis may name steps that it does not have.
        if one.on == "success" and one.after in nodes:
            yield f"    {nodes[one.after]} --> {nodes[one.name]}"
        elif one.on == "failure":
            for failed in [one.after] if one.after in nodes else _without_branch(status):
                yield f"    {nodes[failed]} -. failure .-> {nodes[one.name]}"
    for state in sorted({_class_of(one) for one in status.steps}):
        yield f"    classDef {state} {_COLOURS[state]}"


def _class_of(step: StepStatus) -> str:
    """Return the state of a step; ``waiting`` for a word in Redis that is no state."""
    return step.state if step.state in _COLOURS else "waiting"


def mermaid_text(text: str) -> str:
    """Return a text as Mermaid shows it inside of quotes: no character of it can end the text, or become markup of the page."""
    return "".join([char if char.isalnum() or char in _PLAIN else f"#{ord(char)};" for char in visible(text)])


def counts(step: StepStatus) -> str:
    """Return how many of the jobs of a step have succeeded, and how many have not and will not."""
    if step.jobs is None:
        return "jobs not computed yet"
    if step.state in ("waiting", "skipped"):
        return f"{step.jobs:,} {'job' if step.jobs == 1 else 'jobs'}"
    lost = [f"{number:,} {name}" for name, number in (("dead", step.dead), ("removed", step.removed)) if number]
    return ", ".join([f"{max(0, step.jobs - step.pending):,} of {step.jobs:,} succeeded", *lost])


def _without_branch(status: WorkflowStatus) -> list[str]:
    """Return the steps of the main line that have no branch of their own."""
    own = {one.after for one in status.steps if one.on == "failure"}
    line = [one.name for one in status.steps if one.on == "start"]
    for one in status.steps:
        if one.on == "success" and one.after in line:
            line.append(one.name)
    return [name for name in line if name not in own]
