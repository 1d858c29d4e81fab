"""Test groups of attributes: what a worker class has by its groups, and what an application's own group adds."""

from typing import Any, ClassVar

import pytest

from framework import ApplicationWorker
from framework.application_worker import ATTRIBUTES
from framework.declare import registry, validators
from framework.declare.attribute import attribute, attribute_group
from framework.declare.check import attributes_of
from framework.declare.worker import CoreWorker
from framework.errors import DeclarationError


@attribute_group()
class CostAttributes:
    """A group of an application."""

    cost: ClassVar[int | None] = attribute(
        None, validator=validators.optional(validators.integer(1)), group="application", effect="Nothing.", trap="None."
    )
    """What a run
    costs, in ``cents``."""


class BilledWorker(CostAttributes, ApplicationWorker, abstract=True):
    """The base of an application with the group."""


def perform(self: Any) -> None: ...


def declared(*bases: type[Any], **body: Any) -> Any:
    body = {"__module__": "workers.billing", "perform": perform, **body}
    with registry.isolated():
        made: Any = type("ChargeWorker", bases, body)
        return made.declaration()


def test_group_gives_its_classes_the_default() -> None:
    assert BilledWorker.cost is None
    assert attributes_of(BilledWorker)["cost"].meaning == "What a run costs, in `cents`."
    assert list(attributes_of(BilledWorker))[:-1] == list(ATTRIBUTES)


def test_declaration_has_the_checked_value_as_a_fact() -> None:
    assert declared(BilledWorker, cost=7).facts["cost"] == 7
    assert declared(BilledWorker).facts["cost"] is None
    with pytest.raises(DeclarationError, match=r"cost = 0 is not allowed\. Allowed: a whole number >= 1, or None\."):
        declared(BilledWorker, cost=0)


def test_attribute_of_a_group_is_unknown_in_other_classes() -> None:
    with pytest.raises(DeclarationError, match="'cost' is not a worker attribute"):
        declared(ApplicationWorker, cost=7)


def test_attribute_of_two_groups_is_refused() -> None:
    @attribute_group()
    class Others:
        urgency: ClassVar[int] = attribute(1, validator=validators.integer(1), group="application", effect="", trap="")

    with pytest.raises(DeclarationError, match=r"urgency is an attribute of framework\.declare\.attributes\.CoreAttri"):
        declared(Others, ApplicationWorker)


def test_base_of_a_program_may_have_the_core_alone() -> None:
    class Plain(CoreWorker):
        """A base without features."""

    assert attributes_of(Plain).keys() < ATTRIBUTES.keys()
    with pytest.raises(DeclarationError, match="'cron' is not a worker attribute"):
        declared(Plain, cron="@daily")
