"""Check ``config/schedule.yml`` against the source of the workers: a boot would refuse the file, or a class is missing."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from framework.all_settings import load
from framework.devtools.lint.classes import CURSOR, ENUMERATOR, ClassIndex, SourceClass
from framework.devtools.lint.workspace import Workspace
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.messages import did_you_mean, join_names
from framework.typeguards import is_list, is_mapping, short_repr

_FILE = "schedule.yml"
_PLAIN_TYPES: Mapping[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int)}


def schedule_problems(tree: Workspace, entries: Any, label: str) -> Iterator[ConfigurationProblem]:
    """Yield the problems of the file whose value of ``schedule`` is ``entries``; ``tree`` has all modules of the application."""
    if entries is None:
        return
    strict = "raise"
    try:
        strict = load().strict_arguments
    except ConfigurationError as error:
        yield from (one for one in error.problems if Path(one.file).name == _FILE)
    if not is_mapping(entries) or tree.unreadable:
        return
    classes = ClassIndex(tree)
    workers = {name: worker for worker in classes.workers if not worker.abstract for name in worker.wire_names}
    for name, entry in entries.items():
        wanted = entry.get("class") if is_mapping(entry) else None
        if not isinstance(wanted, str):
            continue
        if not classes.may_have_wire_name(wanted):
            message = f"no worker has the wire name {wanted!r}{did_you_mean(wanted, list(workers))}"
            yield ConfigurationProblem(f"{label}/{_FILE}", f"schedule.{name}.class", message)
        elif wanted in workers and is_list(given := entry.get("args", [])):
            for message in _argument_faults(workers[wanted], given, strict):
                yield ConfigurationProblem(f"{label}/{_FILE}", f"schedule.{name}.args", f"{wanted}: {message}")


def _argument_faults(worker: SourceClass, given: Sequence[Any], strict: str) -> Iterator[str]:
    """Yield why the arguments do not fit the worker's method, as far as its source shows: their number, and plain types.

    ``strict`` is the setting ``strict_arguments``, for classes without the attribute.
    """
    method = next((one for _, one in worker.handlers() if one.name in ("perform", ENUMERATOR)), None)
    if method is None or method.decorator_list:
        return
    arguments = method.args
    taken = [
        one for one in (*arguments.posonlyargs, *arguments.args)[1:] if one.arg != CURSOR or method.name != ENUMERATOR
    ]
    # Of an iterable worker the cursor has no default, and is passed by name.
    optional = len(arguments.defaults)
    missing = [one.arg for one in taken[len(given) : len(taken) - optional]]
    if missing:
        yield f"{join_names(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if len(given) > len(taken) and arguments.vararg is None:
        yield f"{len(given)} arguments are given, and {method.name} takes {len(taken)}"
    if (worker.value("strict_arguments") or strict) == "raise":
        for one, value in zip(taken, given, strict=False):
            wanted = _PLAIN_TYPES.get(one.annotation.id) if isinstance(one.annotation, ast.Name) else None
            # A bool is an int to Python, and never one on the wire.
            if wanted is not None and type(value) not in wanted:
                yield f"argument {one.arg!r} is {short_repr(value)}, no {cast('ast.Name', one.annotation).id}"
