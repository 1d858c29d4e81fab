"""List the worker classes of this process: what each declares, and the rule that routes it. It asks no Redis."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from framework.declare import port, registry
from framework.declare.declaration import Declaration
from framework.errors import UnknownNameError
from framework.text import did_you_mean

_NO_ATTRIBUTES = frozenset(
    {"class_name", "module", "wire_name", "signature", "version_handlers", "facts", "is_async", "in_thread"}
)
"""Fields of a declaration that are no attribute of the class."""


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """One worker class."""

    name: str
    """Its name on the wire."""
    module: str
    doc: str
    """The first line of its docstring."""
    queue: str
    """The queue that its jobs go to."""
    shard: str
    """The first of ``shards``."""
    shards: tuple[str, ...]
    """The shards that its jobs go to: several if it is spread, or a part of its jobs moves."""
    rule: str | None
    """The routing rule that has decided; ``None`` if none matches: the generated name on ``main``."""
    parameters: str
    """The parameters of ``perform``."""
    is_async: bool
    attributes: Mapping[str, Any]
    """The checked value of each attribute."""


def worker_classes() -> list[WorkerClass]:
    """Return the loaded worker classes by name. The process must have imported them, as ``boot()`` or ``-r`` does.

    Raises:
        ConfigurationError: the configuration is invalid.
    """
    return sorted((_shown(worker) for worker in registry.workers()), key=lambda one: one.name)


def worker_class(name: str) -> WorkerClass:
    """Return the class with this wire name, or former name.

    Raises:
        UnknownNameError: no such class is loaded.
        ConfigurationError: the configuration is invalid.
    """
    found = registry.find(name)
    if found is None:
        known = [str(one.declaration().wire_name) for one in registry.workers()]
        raise UnknownNameError(f"no worker class is named {name!r}{did_you_mean(name, known)}")
    return _shown(found)


def _shown(worker: type[Any]) -> WorkerClass:
    declaration: Declaration = worker.declaration()
    queue, shard, rule = port.current().route(declaration)
    values = {one.name: getattr(declaration, one.name) for one in fields(declaration) if one.name not in _NO_ATTRIBUTES}
    lines = (worker.__doc__ or "").strip().splitlines()
    return WorkerClass(
        declaration.wire_name,
        declaration.module,
        lines[0] if lines else "",
        queue,
        shard,
        port.current().shards_of(declaration),
        rule,
        str(inspect.signature(worker.perform)),
        declaration.is_async,
        {**values, **declaration.facts},
    )
