"""Load the public names of a package at their first use."""

import sys
from importlib import import_module
from typing import Any


def load_name(namespace: dict[str, Any], name: str, module: str) -> Any:
    """Return the value of ``name``, which ``module`` defines, and keep it in the package's ``namespace`` (its ``globals()``).

    Raises:
        AttributeError: ``__all__`` of the package does not have the name.
    """
    if name not in namespace["__all__"]:
        raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
    # Later uses find the name without a call.
    value = namespace[name] = getattr(import_module(module), name)
    return value


def public_names(namespace: dict[str, Any]) -> list[str]:
    """Return the names of ``dir(package)``: also those that are not loaded yet."""
    # freezegun reads each name of each module when it freezes the time, with the fakes in place. Loaded by that, a module would
    # keep them, or raise where the library of an extra is missing.
    caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    if caller.f_globals.get("__name__") == "freezegun.api":
        return sorted(namespace)
    return sorted({*namespace, *namespace["__all__"]})
