"""Load the public names of a package at their first use."""

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
    return sorted({*namespace, *namespace["__all__"]})
