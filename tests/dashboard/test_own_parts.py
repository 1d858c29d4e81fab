"""Pages and columns of an application: what callers see of them, and what happens if they fail."""

import pytest
from starlette.testclient import TestClient

from framework import ApplicationWorker, feature
from framework.dashboard import Caller, app, application
from framework.errors import ConfigurationError
from framework.extending import Column, Feature, JobColumn, Late, Page, Rows, TablePage
from tests.dashboard.test_pages import ATTACKS, check_inert
from tests.harness import encoded

HERE = "tests.dashboard.test_own_parts"
LISTS = ("/dead", "/queues/default", "/search?q=J1", "/job/J1")


class TenantColumn(JobColumn):
    title = "Tenant"
    role = "read"

    def value(self, job):
        return job.payload["tenant"]


class CardColumn(JobColumn):
    title = "Card"

    def value(self, job):
        return f"card {job.payload['args'][0]}"


class ClosedTenants(Rows[str]):
    noun = "tenant"

    def read(self, view, shard):
        return ["acme", "<b>"]

    def name_of(self, one):
        return one

    def facts(self, one):
        return {"since": 1.0}


class ClosedTenantsPage(TablePage[str]):
    name = "closed_tenants"
    path = "/closed-tenants"
    title = "Closed tenants"
    menu = "control"
    rows = ClosedTenants()
    heading = "Tenant"
    columns = (Column("Since", "since", "time"),)
    empty = "No tenant is closed."


class SecondQueuesPage(Page):
    name = "queues"
    path = "/other"
    title = "Queues"


OWN = Feature(
    name="tenants",
    pages=(Late(f"{HERE}:ClosedTenantsPage"),),
    job_columns=(Late(f"{HERE}:TenantColumn"), Late(f"{HERE}:CardColumn")),
)


@pytest.fixture
def own(monkeypatch, shards):
    monkeypatch.setattr(feature, "_own", (OWN,))
    callers = []
    # One application: each load of the settings reads the features again.
    served = app(lambda _: callers[-1])

    def client(caller):
        callers.append(caller)
        return TestClient(served, base_url="http://localhost")

    return client


def test_column_is_in_each_list_and_escaped(own, redis):
    attack = ATTACKS[0]
    job = encoded("Job", jid="J1", queue="default", args=[attack], tenant=attack)
    redis.sadd("queues", "default")
    redis.lpush("queue:default", job)
    redis.zadd("dead", {job: 1.0})
    client = own(Caller("ann", "operate"))
    for path in LISTS:
        text = check_inert(client.get(path).text, path).text
        assert f"card {attack}" in text, path
        assert "Tenant" in text


def test_value_needs_the_role_of_its_column(own, redis, own_classes, declarations):
    class Charge(ApplicationWorker):
        feature_category = "billing"

        def perform(self) -> None: ...

    declarations["Charge"] = Charge.declaration()
    for cls in ("Charge", "Other"):
        redis.zadd("dead", {encoded(cls, jid=cls, args=["4242"], tenant="acme"): 1.0})
    both = {"billing": "operate"}
    mixed = own(Caller("eve", "read", feature_categories=both))
    found = {one["class"]: one["columns"] for one in mixed.get("/api/dead").json()["jobs"]}
    assert found == {"Charge": {"Tenant": "acme", "Card": "card 4242"}, "Other": {"Tenant": "acme", "Card": ""}}
    reader = own(Caller("bob", "read"))
    assert reader.get("/api/dead").json()["jobs"][0]["columns"] == {"Tenant": "acme"}
    page = reader.get("/dead").text
    assert "4242" not in page
    assert ">Card<" not in page


def test_column_that_fails_shows_nothing(own, redis):
    redis.zadd("dead", {encoded("Job", jid="J1", args=[]): 1.0, b"no JSON": 2.0})
    answer = own(Caller("ann", "operate")).get("/api/dead")
    assert [one["columns"] for one in answer.json()["jobs"]] == [{"Tenant": "", "Card": ""}] * 2


def test_page_of_the_application_is_in_the_menu_and_has_its_role(own):
    client = own(Caller("ann", "read"))
    assert "Closed tenants" in client.get("/queues").text
    assert "acme" in check_inert(client.get("/closed-tenants").text, "page").text
    assert client.get("/api/closed-tenants").json()["total"] == 4
    assert own(Caller("eve", "none")).get("/closed-tenants").status_code == 403


def test_page_with_the_name_of_another_is_refused(own, monkeypatch):
    monkeypatch.setattr(feature, "_own", (Feature(name="own", pages=(Late(f"{HERE}:SecondQueuesPage"),)),))
    with pytest.raises(ConfigurationError, match="another page has the name 'queues'"):
        application.all_pages()
