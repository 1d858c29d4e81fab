"""Define chains of middlewares and one invocation of a chain.

A middleware is a class whose ``call`` is a generator: code, ``yield``, code. A ``call`` that does not yield stops the job. The
``call`` of a server middleware takes ``(worker, job, queue)``, that of a client middleware ``(worker, job, queue, pool)``.
``worker`` is the class (client) or the instance (server), ``job`` the payload as a dict with decompressed arguments.
"""

import inspect
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from framework.errors import MiddlewareError

SERVER, CLIENT = ("worker", "job", "queue"), ("worker", "job", "queue", "pool")
"""The parameters of a middleware's ``call`` in each chain."""

Steps: TypeAlias = Generator[None, None, None]
Call: TypeAlias = Callable[..., Steps]


class ServerMiddleware(Protocol):
    """Wrap the run of a job, for ``def`` and ``async def`` jobs alike."""

    def call(self, worker: Any, job: dict[str, Any], queue: str) -> Steps:
        """Run code, ``yield``, and run code after the job."""
        ...


class ClientMiddleware(Protocol):
    """Wrap a push. It runs again when a due job moves to its queue, so its effects must be idempotent by jid."""

    def call(self, worker: Any, job: dict[str, Any], queue: str, pool: Any) -> Steps:
        """Run code, ``yield``, and run code after the push."""
        ...


class Chain:
    """Hold an ordered list of middleware classes, outermost first. One instance of each serves all threads.

    ``parameters`` are those of their ``call``.

    Raises:
        MiddlewareError: a method changes a chain in use, which would have no effect, or adds a class with a wrong ``call``.
    """

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.parameters = parameters
        self._entries: list[tuple[type[Any], tuple[Any, ...], dict[str, Any]]] = []
        self._in_use = False

    def add(self, middleware: type[Any], *args: Any, **kwargs: Any) -> None:
        """Add ``middleware`` as the innermost entry. Move it if it is already in the chain."""
        self._insert(len(self._entries), middleware, args, kwargs)

    def prepend(self, middleware: type[Any], *args: Any, **kwargs: Any) -> None:
        """Add ``middleware`` as the outermost entry. Move it if it is already in the chain."""
        self._insert(0, middleware, args, kwargs)

    def insert_before(self, other: type[Any], middleware: type[Any], *args: Any, **kwargs: Any) -> None:
        """Add ``middleware`` just outside of ``other``, or outermost if ``other`` is not in the chain."""
        self.remove(middleware)
        self._insert(self._position(other, absent=0), middleware, args, kwargs)

    def insert_after(self, other: type[Any], middleware: type[Any], *args: Any, **kwargs: Any) -> None:
        """Add ``middleware`` just inside of ``other``, or innermost if ``other`` is not in the chain."""
        self.remove(middleware)
        self._insert(self._position(other, absent=len(self._entries)) + 1, middleware, args, kwargs)

    def remove(self, middleware: type[Any]) -> None:
        """Remove ``middleware`` if it is in the chain."""
        self._refuse_in_use(middleware)
        self._entries = [entry for entry in self._entries if entry[0] is not middleware]

    def clear(self) -> None:
        """Remove every middleware."""
        self._refuse_in_use(None)
        self._entries = []

    def exists(self, middleware: type[Any]) -> bool:
        """Return whether ``middleware`` is in the chain."""
        return any(entry[0] is middleware for entry in self._entries)

    def __iter__(self) -> Iterator[type[Any]]:
        """Iterate over the classes as they are now, outermost first."""
        return iter([entry[0] for entry in self._entries])

    def __len__(self) -> int:
        return len(self._entries)

    def compile(self) -> tuple[Call, ...]:
        """Return the bound ``call`` of a new instance per entry, outermost first. Afterwards the chain is in use."""
        self._in_use = True
        return self.instantiate()

    def instantiate(self) -> tuple[Call, ...]:
        """Return what ``compile`` returns; the chain may still change. For tests, whose next mode instantiates it again."""
        return tuple(middleware(*args, **kwargs).call for middleware, args, kwargs in self._entries)

    def copy(self) -> "Chain":
        """Return a chain of the same entries, which may change."""
        chain = Chain(self.parameters)
        chain._entries = list(self._entries)
        return chain

    def allow_changes(self) -> None:
        """Allow changes again for the next ``compile``: for tests that add middlewares after the first push."""
        self._in_use = False

    def _insert(self, position: int, middleware: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Check before removing the entry of the same class: a refused middleware must change nothing.
        self._refuse_in_use(middleware)
        reason = _signature_problem(middleware, self.parameters, args, kwargs)
        if reason is not None:
            raise MiddlewareError(middleware, f"{reason}. {_expected_signature(self.parameters)}")
        self.remove(middleware)
        self._entries.insert(position, (middleware, args, kwargs))

    def _refuse_in_use(self, middleware: type[Any] | None) -> None:
        if self._in_use:
            raise MiddlewareError(
                middleware,
                "the chain is in use, so a change would have no effect. Change it before the first push of a process and before "
                "framework.boot(); for worker processes in a module that -r or workers_module loads",
            )

    def _position(self, middleware: type[Any], *, absent: int) -> int:
        return next((place for place, entry in enumerate(self._entries) if entry[0] is middleware), absent)


def _signature_problem(
    middleware: Any, parameters: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return the fault of a middleware's signature, or ``None``."""
    if not isinstance(middleware, type):
        return "it is not a class: add the class itself, followed by the arguments of its constructor, as in add(TheClass, 5)"
    call: Any = inspect.getattr_static(middleware, "call", None)
    if call is None:
        return "it has no method call"
    # The function of a staticmethod or classmethod.
    plain: Any = getattr(call, "__func__", call)
    function = inspect.unwrap(plain)
    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        return "its call is async: write def, which serves async jobs too"
    if not inspect.isgeneratorfunction(function):
        return "its call is not a generator function, because it has no yield"
    # A classmethod receives its class, a plain method its instance, a staticmethod neither.
    owner = () if isinstance(call, staticmethod) else ("self",)
    if not _accepts(function, (*owner, *parameters), {}):
        return f"its call{inspect.signature(function)} cannot be called with ({', '.join(parameters)})"
    if not _accepts(middleware, args, kwargs):
        return f"its constructor {inspect.signature(middleware)} does not accept the given arguments"
    return None


def _accepts(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    # A function of a C extension without a signature.
    except ValueError:
        return True
    return True


def _expected_signature(parameters: tuple[str, ...]) -> str:
    return (
        "A middleware is a class with a generator method: "
        f"def call(self, {', '.join(parameters)}): code before; yield; code after"
    )


class ChainInvocation:
    """Run code inside of compiled middlewares: ``with ChainInvocation(calls, ...) as reached_end: if reached_end: run()``.

    ``reached_end`` is false if a middleware did not yield. An error of the body is thrown into each middleware from the inside
    out, and each may let it pass, replace it or suppress it.
    """

    __slots__ = ("_arguments", "_calls", "_entered")

    def __init__(self, calls: tuple[Call, ...], *arguments: Any) -> None:
        self._calls = calls
        self._arguments = arguments
        self._entered: list[Steps] = []

    def __enter__(self) -> bool:
        try:
            for call in self._calls:
                steps = call(*self._arguments)
                try:
                    next(steps)
                except StopIteration:
                    return False
                self._entered.append(steps)
        except BaseException as error:
            # An inner middleware failed before its yield: the outer ones must see this like a failure of the job.
            left = self._unwind(error)
            if left is None:
                return False
            if left is error:
                raise
            raise left from error
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        left = self._unwind(error)
        if left is None:
            return error is not None
        if left is error:
            return False
        raise left

    def _unwind(self, error: BaseException | None) -> BaseException | None:
        while self._entered:
            error = _resume(self._entered.pop(), error)
        return error


def _resume(steps: Steps, error: BaseException | None) -> BaseException | None:
    """Resume one middleware after its yield; return the error for the next one outside, or ``None``."""
    try:
        if error is None:
            next(steps)
        else:
            steps.throw(error)
    except StopIteration:
        return None
    except BaseException as raised:  # noqa: BLE001 - the next middleware outside receives it
        return raised
    steps.close()
    return RuntimeError("a middleware yielded twice; yield exactly once")


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
