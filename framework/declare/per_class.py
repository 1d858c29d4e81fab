"""Cache one computed value per worker class."""

from collections.abc import Callable
from typing import Generic, TypeVar

from framework.declare.declaration import Declaration

T = TypeVar("T")


class PerClass(Generic[T]):
    """Compute a value once per class. Shared between threads without a lock: two may compute the same value."""

    def __init__(self, compute: Callable[[Declaration], T]) -> None:
        self._compute = compute
        self._values: dict[str, tuple[Declaration, T]] = {}

    def get(self, declaration: Declaration) -> T:
        """Return the value of a class."""
        # The reference is read once: a value computed during ``clear`` goes into the old dict and does not outlive it.
        values = self._values
        known = values.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        if known is None or known[0] is not declaration:
            known = values[declaration.wire_name] = (declaration, self._compute(declaration))
        return known[1]

    def clear(self) -> None:
        """Discard all values."""
        self._values = {}
