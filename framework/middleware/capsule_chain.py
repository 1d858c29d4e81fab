"""Define the chain of a capsule: the chain of the process, changed for the jobs of one group of queues."""

from collections.abc import Callable, Iterator
from typing import Any

from framework.middleware.chain import Call, Chain


class CapsuleChain(Chain):
    """The chain of ``base`` with changes of its own, which are applied when the chain is read."""

    def __init__(self, base: Chain) -> None:
        super().__init__(base.parameters)
        self._base = base
        self._changes: list[Callable[[Chain], None]] = []

    def add(self, middleware: type[Any], *args: Any, **kwargs: Any) -> None:
        """Add ``middleware`` as the innermost entry. Move it if it is already in the chain."""
        self._change(middleware, lambda chain: chain.add(middleware, *args, **kwargs))

    def prepend(self, middleware: type[Any], *args: Any, **kwargs: Any) -> None:
        """Add ``middleware`` as the outermost entry. Move it if it is already in the chain."""
        self._change(middleware, lambda chain: chain.prepend(middleware, *args, **kwargs))

    def insert_before(self, other: type[Any], middleware: type[Any], *args: Any, **kwargs: Any) -> None:
        """Add ``middleware`` just outside of ``other``, or outermost if ``other`` is not in the chain."""
        self._change(middleware, lambda chain: chain.insert_before(other, middleware, *args, **kwargs))

    def insert_after(self, other: type[Any], middleware: type[Any], *args: Any, **kwargs: Any) -> None:
        """Add ``middleware`` just inside of ``other``, or innermost if ``other`` is not in the chain."""
        self._change(middleware, lambda chain: chain.insert_after(other, middleware, *args, **kwargs))

    def remove(self, middleware: type[Any]) -> None:
        """Remove ``middleware`` from this chain only, if it is in it."""
        self._change(middleware, lambda chain: chain.remove(middleware))

    def clear(self) -> None:
        """Remove every middleware from this chain only, also those that ``base`` gets later."""
        self._change(None, lambda chain: chain.clear())

    def exists(self, middleware: type[Any]) -> bool:
        """Return whether ``middleware`` is in the chain."""
        return self._applied().exists(middleware)

    def __iter__(self) -> Iterator[type[Any]]:
        return iter(self._applied())

    def __len__(self) -> int:
        return len(self._applied())

    def instantiate(self) -> tuple[Call, ...]:
        """Return what ``compile`` returns; the chain may still change."""
        return self._applied().instantiate()

    def _change(self, middleware: type[Any] | None, change: Callable[[Chain], None]) -> None:
        self._refuse_in_use(middleware)
        # On a copy first: a refused middleware must change nothing.
        change(self._applied())
        self._changes.append(change)

    def _applied(self) -> Chain:
        chain = self._base.copy()
        for change in self._changes:
            change(chain)
        return chain
