"""Check ``config/schedule.yml`` against the source of the workers: a boot would refuse the file, or a class is missing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from framework.devtools.lint.classes import ClassIndex
from framework.devtools.lint.workspace import Workspace
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.messages import did_you_mean
from framework.settings.load import load
from framework.typeguards import is_mapping

_FILE = "schedule.yml"


def schedule_problems(tree: Workspace, entries: Any, label: str) -> Iterator[ConfigurationProblem]:
    """Yield the problems of the file whose value of ``schedule`` is ``entries``; ``tree`` has all modules of the application."""
    if entries is None:
        return
    try:
        load()
    except ConfigurationError as error:
        yield from (one for one in error.problems if Path(one.file).name == _FILE)
    if not is_mapping(entries) or tree.unreadable:
        return
    classes = ClassIndex(tree)
    known = [name for worker in classes.workers if not worker.abstract for name in worker.wire_names]
    for name, entry in entries.items():
        wanted = entry.get("class") if is_mapping(entry) else None
        if isinstance(wanted, str) and not classes.may_have_wire_name(wanted):
            message = f"no worker has the wire name {wanted!r}{did_you_mean(wanted, known)}"
            yield ConfigurationProblem(f"{label}/{_FILE}", f"schedule.{name}.class", message)
