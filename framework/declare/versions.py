"""Handlers of older versions: a method ``perform_v1`` runs jobs that were written with version 1.

GitLab's contract is that newer code handles every older version. A handler does so under the signature that ``perform`` had
then, instead of branches inside of ``perform``.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from framework.declare.error_collector import ErrorCollector
from framework.declare.signature import JobSignature, build_signature, check_method
from framework.messages import nearest

_HANDLER = re.compile(r"perform_v(0|[1-9][0-9]*)")
_MISSPELT_HANDLER = re.compile(r"([a-z]+?)_*(v|vers?|version)?_*(\d*)_*", re.IGNORECASE)
_SIMILARITY_CUTOFF = 0.85


@dataclass(frozen=True, slots=True)
class VersionHandler:
    """The method that runs jobs of one older version, with a signature of its own."""

    signature: JobSignature
    is_async: bool
    loggable_positions: frozenset[int]

    @property
    def method(self) -> str:
        """The name of the method, for example ``perform_v1``."""
        return self.signature.method


# A handler runs exactly its version. A handler for "1 and older" would have to guess the arguments of version 0.
def is_handler(name: str) -> bool:
    """Whether a method of this name runs jobs of an older version."""
    return _HANDLER.fullmatch(name) is not None


def check_handler_names(faults: ErrorCollector, owner: type[Any]) -> None:
    """Note names in the body of ``owner`` that look like a handler and are none.

    Such is a misspelt name (``perform_v01``, ``perform_version_1``), and a value that is no method.
    """
    for name, value in vars(owner).items():
        if name.startswith("_"):
            continue
        if is_handler(name):
            with faults.collect():
                check_method(faults.worker, name, value)
            continue
        parts = _MISSPELT_HANDLER.fullmatch(name)
        if parts and (parts[2] or parts[3]) and nearest(parts[1].lower(), ("perform",), cutoff=_SIMILARITY_CUTOFF):
            hint = f" (did you mean 'perform_v{int(parts[3])}'?)" if parts[3] else ""
            faults.add(
                f"{name!r} runs no jobs{hint}. The method for jobs of an older version is called perform_v<N>, such as perform_v0 or "
                f"perform_v1. A helper of your own: _{name}.",
                name,
            )


def read_handlers(
    worker: str, cls: type[Any], version: int, loggable: tuple[str, ...], *, strict: bool
) -> Mapping[int, VersionHandler]:
    """Return the handlers of a class of ``version``, resolved along the MRO, by the version whose jobs they run.

    Raises DeclarationError for each handler that no job would reach, as it is not older than the class, and for each signature
    that cannot travel.
    """
    faults = ErrorCollector(worker)
    found: dict[int, VersionHandler] = {}
    for name, owner in _handlers_by_owner(cls):
        number = int(name.removeprefix("perform_v"))
        if number >= version:
            where = "" if owner is cls else f" (of {owner.__qualname__})"
            faults.add(
                f"{name}{where} is for jobs older than the class, but the class says version = {version}: jobs of its own version "
                f"run perform. Raise version (to {number + 1} or more), or remove {name}.",
                name,
            )
            continue
        method = vars(owner)[name]
        with faults.collect():
            check_method(worker, name, method)
            signature = build_signature(worker, method, name, strict=strict)
            positions = frozenset(index for index, word in enumerate(signature.names) if word in loggable)
            found[number] = VersionHandler(signature, inspect.iscoroutinefunction(method), positions)
    faults.raise_errors()
    return found


def signature_since(handlers: Mapping[int, VersionHandler], version: int) -> int:
    """Return the version since which the method that runs ``version`` has been ``perform``: 0, or one after an older handler's.

    The number is the same in every release: a handler keeps the one that ``perform`` had when its version was the newest.
    """
    handles_it = version in handlers
    return max((number + 1 for number in handlers if not handles_it or number < version), default=0)


def _handlers_by_owner(cls: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    names = dict.fromkeys(name for owner in cls.__mro__ for name in vars(owner) if is_handler(name))
    return ((name, next(owner for owner in cls.__mro__ if name in vars(owner))) for name in names)
