"""Compose what worker classes have from the core and the features: their attributes, their calls, and the options of a push.

A feature is one base in each of the classes here. The order of the groups is that of the reference pages.
"""

from typing import Any, ClassVar, Unpack, cast

from framework.declare.attribute import constraints_of
from framework.declare.options import CoreOptions, add_options, check_options
from framework.declare.request import P, Performs
from framework.declare.setter import CoreSetter
from framework.declare.worker import CoreWorker
from framework.features.backlog.attributes import BacklogAttributes
from framework.features.batches.attributes import BatchMember, LinkOptions
from framework.features.batches.calls import LinkCalls
from framework.features.breaker.attributes import BreakerAttributes
from framework.features.concurrency.attributes import ConcurrencyAttributes
from framework.features.consistency.attributes import ConsistencyAttributes
from framework.features.cron.attributes import CronAttributes
from framework.features.deduplication.attributes import DeduplicationAttributes
from framework.features.encryption.attributes import EncryptionAttributes
from framework.features.fairness.attributes import FairnessAttributes, FairnessOptions
from framework.features.health.attributes import HealthAttributes
from framework.features.isolation.attributes import IsolationAttributes
from framework.features.iteration.attributes import IterationAttributes
from framework.features.leases.attributes import LeaseAttributes
from framework.features.limiters.attributes import LimiterAttributes
from framework.features.pause.attributes import PauseAttributes
from framework.features.profiling.attributes import ProfilingOptions
from framework.features.results.attributes import ResultAttributes, ResultOptions
from framework.features.results.calls import ResultCalls, SetterCalls
from framework.features.status.attributes import StatusAttributes, StatusOptions
from framework.features.tasks.attributes import TaskAttributes, TaskOptions


class PushOptions(
    CoreOptions, StatusOptions, ResultOptions, TaskOptions, FairnessOptions, LinkOptions, ProfilingOptions, total=False
):
    """The options of ``set``. An option with the name of an attribute replaces the attribute for this push only."""


add_options(PushOptions)


class Setter(SetterCalls[P], LinkCalls, CoreSetter[P]):
    """Push jobs of one worker class with options (``Worker.set(...)``)."""

    __slots__ = ()

    def set(self, **options: Unpack[PushOptions]) -> "Setter[P]":
        """Return a setter with these options in addition; the last value of an option counts.

        Raises:
            ArgumentsError: an option is unknown or invalid.
        """
        return self._with(options)


class ApplicationWorker(
    IsolationAttributes,
    EncryptionAttributes,
    StatusAttributes,
    ResultAttributes,
    TaskAttributes,
    DeduplicationAttributes,
    ConcurrencyAttributes,
    FairnessAttributes,
    LimiterAttributes,
    CronAttributes,
    IterationAttributes,
    LeaseAttributes,
    HealthAttributes,
    PauseAttributes,
    BreakerAttributes,
    BacklogAttributes,
    ConsistencyAttributes,
    BatchMember,
    ResultCalls,
    CoreWorker,
):
    """Declare one kind of job by a subclass with attributes and a method ``perform`` (GitLab's ApplicationWorker).

    Attributes are plain values in the class body, inherited along the MRO. Each job has its own instance, made without arguments.
    ``class Base(ApplicationWorker, abstract=True)`` shares attributes and has no jobs.

    Raises:
        DeclarationError: creating the class found an invalid attribute or an invalid ``perform``.
    """

    _aw_setter_type: ClassVar[type[CoreSetter[Any]]] = Setter

    @classmethod
    def set(cls: type[Performs[P]], **options: Unpack[PushOptions]) -> Setter[P]:
        """Return an object with the same push methods and these options.

        Raises:
            ArgumentsError: an option is unknown or invalid.
        """
        declaration = cast("type[CoreWorker]", cls).declaration()
        checked = check_options(declaration.qualified_name, options)
        return Setter(cls, declaration, checked)


ATTRIBUTES = ApplicationWorker._aw_attributes  # pyright: ignore[reportPrivateUsage]
"""Every attribute of a worker class by its name, with the declared options of the application. A class with any other is refused."""

CONSTRAINTS = constraints_of(ApplicationWorker)
"""The combinations of two attributes that a class may not have."""
