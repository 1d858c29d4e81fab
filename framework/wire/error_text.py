"""The texts of an error, as payloads (``error_class``, ``error_message``) and log lines hold them."""

_MAX_NAME = 500


def error_class(error: BaseException) -> str:
    """Return any error's class with its module, as Unicode; builtins without."""
    # Read past the metaclass, which may do anything when asked; __module__ itself may be anything too.
    kind = type(error)
    name, module = (vars(type)[part].__get__(kind) for part in ("__qualname__", "__module__"))
    package = _plain(module) if isinstance(module, str) else "builtins"
    return _plain(name) if package == "builtins" else f"{package}.{_plain(name)}"


def _plain(text: str) -> str:
    """Return the text of a str, or of a subclass that may do anything, as Unicode of some length."""
    return str.encode(str.__getitem__(text, slice(_MAX_NAME)), "utf-8", "replace").decode()


def error_message(error: BaseException, limit: int) -> str:
    """Return at most ``limit`` characters of any error's message, as Unicode, whatever its ``__str__`` does."""
    try:
        # Sliced as a plain str: what __str__ returns may be of a subclass that does anything when sliced.
        text = str.__getitem__(str(error), slice(limit))
    except BaseException as failure:  # noqa: BLE001 - a job's exception may do anything, and telling of it must not fail
        text = f"<its message cannot be read: __str__ raised {type(failure).__name__}>"
    return text.encode("utf-8", "replace").decode("utf-8")
