"""Type the push methods of an ``IterableWorker``: they take the arguments of ``each_iteration`` behind its item.

At run time the class is empty: the methods are those of ``ApplicationWorker``.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Unpack

from framework.application_worker import PushOptions, Setter
from framework.declare.request import JobRequest
from framework.types import Jid

P = ParamSpec("P")


class Iterates(Protocol[P]):
    """Represent a worker whose ``each_iteration`` takes an item and P. Type checkers compare pushes with it."""

    def each_iteration(self, item: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Process one item."""


class IterablePushes:
    """The push methods, for type checkers."""

    if TYPE_CHECKING:

        @classmethod
        def arguments(cls: type[Iterates[P]], *args: P.args, **kwargs: P.kwargs) -> JobRequest[P]:
            """Return one job for ``perform_bulk_for``."""
            ...

        @classmethod
        def perform_async(cls: type[Iterates[P]], *args: P.args, **kwargs: P.kwargs) -> Jid | None:
            """Push the job."""
            ...

        @classmethod
        def perform_in(
            cls: type[Iterates[P]], delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs
        ) -> Jid | None:
            """Push the job, due after ``delay``."""
            ...

        @classmethod
        def perform_at(
            cls: type[Iterates[P]], when: datetime | float, /, *args: P.args, **kwargs: P.kwargs
        ) -> Jid | None:
            """Push the job, due at ``when``."""
            ...

        @classmethod
        def perform_inline(cls: type[Iterates[P]], *args: P.args, **kwargs: P.kwargs) -> None:
            """Run the job in this process."""
            ...

        @classmethod
        def set(cls: type[Iterates[P]], **options: Unpack[PushOptions]) -> Setter[P]:
            """Return an object with the same push methods and these options."""
            ...

        @classmethod
        async def aperform_async(cls: type[Iterates[P]], *args: P.args, **kwargs: P.kwargs) -> Jid | None:
            """Push the job, in a thread."""
            ...

        @classmethod
        async def aperform_in(
            cls: type[Iterates[P]], delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs
        ) -> Jid | None:
            """Push the job, due after ``delay``, in a thread."""
            ...

        @classmethod
        async def aperform_at(
            cls: type[Iterates[P]], when: datetime | float, /, *args: P.args, **kwargs: P.kwargs
        ) -> Jid | None:
            """Push the job, due at ``when``, in a thread."""
            ...
