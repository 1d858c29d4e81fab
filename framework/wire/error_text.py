"""Return the texts of an error for payloads (``error_class``, ``error_message``) and log lines."""

_MAX_NAME = 500


def error_class(error: BaseException) -> str:
    """Return an error's class name with its module, as Unicode; builtins without module."""
    # Bypass the metaclass, whose attribute access may run any code; __module__ itself may be any object.
    kind = type(error)
    name, module = (vars(type)[part].__get__(kind) for part in ("__qualname__", "__module__"))
    package = _plain(module) if isinstance(module, str) else "builtins"
    return _plain(name) if package == "builtins" else f"{package}.{_plain(name)}"


def _plain(text: str) -> str:
    """Return the first characters of a str, or of a subclass with any behaviour, as Unicode."""
    return str.encode(str.__getitem__(text, slice(_MAX_NAME)), "utf-8", "replace").decode()


def error_message(error: BaseException, limit: int) -> str:
    """Return at most ``limit`` characters of an error's message, as Unicode, whatever its ``__str__`` does."""
    try:
        # Slice as a plain str: __str__ may return a subclass whose slicing runs any code.
        text = str.__getitem__(str(error), slice(limit))
    except BaseException as failure:  # noqa: BLE001 - a job's exception may raise anything, and reporting it must not fail
        text = f"<its message cannot be read: __str__ raised {type(failure).__name__}>"
    return text.encode("utf-8", "replace").decode("utf-8")
