"""The role of a caller per shard and feature category."""

import pytest

from framework.pages.caller import Caller


def test_role_of_a_shard_replaces_the_general_role():
    caller = Caller("ann", "operate", shards={"main": "read"})
    assert (caller.role_for("main"), caller.role_for("second")) == ("read", "operate")
    assert caller.may("read", "main")
    assert not caller.may("operate", "main")


def test_role_of_a_category_holds_for_its_jobs():
    caller = Caller("ann", shards={"closed": "none"}, feature_categories={"billing": "operate"})
    assert caller.may("operate", "main", "billing")
    assert not caller.may("read", "main", "search")
    assert not caller.may("read", "main")
    assert not caller.may("read", "closed", "billing")
    assert caller.may_for_some_jobs("operate", "main")
    assert not caller.may_for_some_jobs("admin", "main")


def test_callers_with_other_roles_have_another_sight():
    assert Caller("ann", "read").sight == Caller("bob", "read").sight
    assert Caller("ann", "read").sight != Caller("ann", "read", feature_categories={"billing": "admin"}).sight


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "ann", "role": "root"}, {"name": "ann", "shards": {"main": "all"}}]
)
def test_caller_with_a_wrong_role_is_refused(wrong):
    with pytest.raises(ValueError, match=r"role|name"):
        Caller(**wrong)
