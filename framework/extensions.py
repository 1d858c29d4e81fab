"""Register extensions of the application: objects by name, and callables in their order."""

import re
from collections.abc import Collection
from typing import Any, TypeVar

from framework.typeguards import is_class, short_repr

E = TypeVar("E")

_NAME = re.compile(r"[A-Za-z0-9_]+")


class NamedExtensions(dict[str, E]):
    """Hold the registered extensions of one ``kind`` by name. Each has a method called ``method``."""

    def __init__(self, kind: str, method: str, built_in: Collection[str] = ()) -> None:
        super().__init__()
        self._kind = kind
        self._method = method
        self._built_in = built_in

    def register(self, name: str, extension: "E | type[E]") -> None:
        """Add an extension under ``name``, in place of an earlier one. A class is instantiated without arguments.

        Raises ValueError for a name that is malformed or built in, TypeError for an object without the method.
        """
        given: Any = name
        if not isinstance(given, str) or _NAME.fullmatch(given) is None:
            message = (
                f"the name of a {self._kind} must be a name of letters, digits and underscores, not {short_repr(given)}"
            )
            raise ValueError(message)
        if name in self._built_in:
            raise ValueError(f"the {self._kind} {name!r} is built in: choose another name")
        if not callable(getattr(extension, self._method, None)):
            raise TypeError(
                f"{short_repr(extension)} is no {self._kind}: pass a class or an object with {self._method}()"
            )
        made: Any = extension() if is_class(extension) else extension
        self[name] = made


def append_once(extensions: list[Any], extension: object) -> None:
    """Append an extension, unless it is there already."""
    if extension not in extensions:
        extensions.append(extension)
