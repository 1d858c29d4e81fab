"""Test the plan that ``scripts/cluster`` makes of its arguments: by a table, by a simple oracle, and as a command."""

import json
import shlex

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from framework.cli.main import main
from framework.cluster.plan import GroupSize, Planner, Selection, dry_run_lines
from framework.errors import ConfigurationError, SelectorError
from framework.process.own_queues import CapsuleOptions, expand_queues
from framework.route.router import Router
from framework.route.topology import QueueLocations
from framework.settings.model import RoutingRule
from framework.text import MOST
from tests.tables import each_row

SHARDS = ("main", "far", "side")


def entry(worker, **facts):
    """Return the fields of an entry of scripts/generate_queues that planning reads."""
    namespace = facts.get("queue_namespace")
    name = worker.removesuffix("Worker").lower()
    usual = {"urgency": "low", "tags": [], "queue": None, "shard": None, "retry_queue": None, "aliases": []}
    return {"name": f"{namespace}:{name}" if namespace else name, "worker_name": worker, **usual, **facts}


ENTRIES = [
    entry("FindWorker", queue_namespace="search"),
    entry("IndexWorker", queue_namespace="search", urgency="throttled"),
    entry("MailWorker", urgency="high"),
    entry("OwnWorker", queue="mine", retry_queue="later", shard="side"),
    entry("NewWorker", aliases=["OldWorker"], tags=["new"]),
]
RULES = (
    RoutingRule("worker_name=OldWorker", "old_jobs", "far"),
    RoutingRule("queue_namespace=search&urgency=throttled", "search", "far"),
    RoutingRule("urgency=high", None, "far"),
    RoutingRule("tags=unused", "spare", "far"),
    RoutingRule("worker_name=NewWorker", "default"),
)
"""Jobs go to: default, search:find on main; mail, old_jobs, search, spare on far; later, mine on side."""


def places(entries=ENTRIES, rules=RULES, retired=()):
    return QueueLocations(Router(rules, SHARDS), entries, retired)


def planned(*selectors, known=None, size=None, **selection):
    shards = tuple(selection.pop("shards", ()))
    planner = Planner(known or places(), Selection(shards=shards, **selection))
    return planner.plan(selectors, size or GroupSize(slots=10))


def by_shard(*selectors, **selection):
    return [(one.shard, " ".join(one.queues)) for one in planned(*selectors, **selection)]


EVERYTHING = [("main", "default search:find"), ("far", "mail old_jobs search spare"), ("side", "later mine")]


def test_places_include_routed_and_remaining_jobs():
    found = places(retired=["GoneWorker"])
    assert found.routed == {
        "default": ("main",),
        "gone": ("main",),
        "later": ("side",),
        "mail": ("far",),
        "mine": ("side",),
        "old_jobs": ("far",),
        "search": ("far",),
        "search:find": ("main",),
        "spare": ("far",),
    }
    assert set(found.known) - set(found.routed) == {"new", "old", "own", "search:index"}
    assert found.known["own"] == ("side",)


@each_row(
    ("selector", "selection", "wanted"),
    [
        ("default", {}, [("main", "default")]),
        ("mail,default", {}, [("main", "default"), ("far", "mail")]),
        ("new", {}, [("main", "new")]),
        ("unused", {}, [("main", "unused")]),
        ("search", {}, [("main", "search:find search:index"), ("far", "search")]),
        ("search:*", {}, [("main", "search:find search:index")]),
        ("*", {}, EVERYTHING),
        ("default,mine", {"negate": True}, [("main", "search:find"), *EVERYTHING[1:2], ("side", "later")]),
        ("search", {"negate": True}, [("main", "default"), ("far", "mail old_jobs spare"), EVERYTHING[2]]),
        ("own", {"negate": True}, EVERYTHING),
        ("*", {"by_query": True}, [EVERYTHING[0], ("far", "mail old_jobs search"), EVERYTHING[2]]),
        ("urgency=high|tags=new", {"by_query": True}, [("main", "default"), ("far", "mail old_jobs")]),
        ("urgency!=low", {"by_query": True, "negate": True}, [EVERYTHING[0], ("far", "old_jobs spare"), EVERYTHING[2]]),
        ("*", {"shards": ["far"]}, EVERYTHING[1:2]),
        ("*", {"shards": ["side", "main"]}, [EVERYTHING[0], EVERYTHING[2]]),
        (
            "mail,default",
            {"shards": ["far"]},
            [("far", "mail default")],
        ),  # the shard keeps jobs from before a change of rules
        ("unused", {"shards": ["far"]}, [("far", "unused")]),
        ("unused", {"shards": ["far", "main"]}, [("main", "unused"), ("far", "unused")]),
        ("search", {"shards": ["main"]}, [("main", "search search:find search:index")]),
        ("search:*", {"shards": ["main"]}, [("main", "search:find search:index")]),
    ],
)
def test_plan_selector_chooses_its_queues(selector, selection, wanted):
    assert by_shard(selector, **selection) == wanted


def test_plan_group_has_its_processes_on_each_shard():
    found = planned("*", "mail", size=GroupSize(slots=10, processes=2))
    assert [(one.name, one.shard) for one in found] == [
        ("worker-0-0", "main"),
        ("worker-0-1", "main"),
        ("worker-0-2", "far"),
        ("worker-0-3", "far"),
        ("worker-0-4", "side"),
        ("worker-0-5", "side"),
        ("worker-1-0", "far"),
        ("worker-1-1", "far"),
    ]


def test_plan_repeated_queue_has_a_higher_weight():
    (one,) = planned("mail,search,mail", shards=["far"])
    assert one.queues == {"mail": 2, "search": 1}
    assert one.spec(5, ["jobs"]).argv[-6:] == ["jobs", "--no-namespaces", "-q", "mail,2", "-q", "search,1"]
    (one,) = planned("search:*,search:find")
    assert one.queues == {"search:find": 2, "search:index": 1}


def test_plan_capsule_takes_its_queues_from_a_process():
    slow = CapsuleOptions("slow", (("mail", 2), ("search", 0)), 1)
    spare = CapsuleOptions("spare", (("spare", 0),), 4)
    size = GroupSize(slots=10, most=5, capsules=(slow, spare))
    one, two = planned("mail,default", shards=["far"], size=size), planned("mail,search", shards=["far"], size=size)
    assert one[0].spec(5, []).argv[-6:] == ["-q", "default", "--capsule", "slow", "1", "mail,2"]
    assert two[0].spec(5, []).argv[-5:] == ["--capsule", "slow", "1", "mail,2,search", "--only-capsules"]
    assert (two[0].all_queues, two[0].spec(5, []).queues) == (["mail", "search"], ("mail", "search"))
    assert dry_run_lines(one[0], one[0].spec(5, []))[0].endswith("shard far, 6 slots, 2 queues: default, mail")


def test_plan_literal_name_gets_no_namespaces():
    assert [(one.shard, one.no_namespaces) for one in planned("search")] == [("main", False), ("far", True)]
    assert [one.no_namespaces for one in planned("search:find", negate=True)] == [False, True, False]
    one = planned("*", shards=["far"])[0]
    assert "--no-namespaces" in one.spec(5, []).argv
    assert one.spec(5, [], ["--tag", "shop"]).argv.count("--tag") == 1


@each_row(
    ("least", "most", "queues", "slots"),
    [
        (None, None, 8, 10),  # the setting applies
        (None, 4, 1, 4),
        (None, 40, 1, 40),
        (3, 7, 1, 3),
        (3, 7, 4, 5),
        (3, 7, 9, 7),
        (0, 50, 1, 2),
        (5, 5, 99, 5),
        (3, None, 1, 3),
        (3, None, 9, 10),
        (3, None, 99, 50),
        (80, None, 99, 80),
    ],
)
def test_plan_slots_follow_queues_within_limits(least, most, queues, slots):
    known = places([entry(f"A{number}Worker") for number in range(queues)], ())
    (one,) = planned("*", known=known, size=GroupSize(10, least=least, most=most))
    assert (len(one.queues), one.slots) == (queues, slots)


@each_row(
    ("selector", "selection", "reason"),
    [
        (
            "serch:*",
            {},
            "there is no namespace 'serch' (did you mean 'search'?); run application-worker generate-queues if",
        ),
        (
            "defualt",
            {"negate": True},
            "no queue and no namespace 'defualt' to leave out (did you mean 'default'?); run application-worker ",
        ),
        ("*", {"negate": True}, "leaves no queue to serve"),
        ("search:*", {"shards": ["side"]}, "has no queue on side; its queues are on main"),
        ("search:in*", {}, "'search:in*' is not a queue name"),
        ("urgency=hihg", {"by_query": True}, "unknown urgency 'hihg' (did you mean 'high'?)"),
        ("urgency=high mail", {"by_query": True}, "a query has no spaces"),
        ("", {"by_query": True}, "an attribute is missing here"),
        ("urgency=high\n", {"by_query": True}, "^ character 13"),
        ("mail,default", {"by_query": True}, "unknown attribute 'mail'"),
        (
            "worker_name=MialWorker",
            {"by_query": True},
            "no worker in workers/all_queues.yml matches it: none has worker_name MialWorker (did you mean 'MailWorker'?); run",
        ),
        (
            "urgency=high&tags=new",
            {"by_query": True},
            "matches it; run application-worker generate-queues if a worker is new",
        ),
    ],
)
def test_plan_invalid_selector_is_refused(selector, selection, reason):
    with pytest.raises(SelectorError) as caught:
        planned(selector, **selection)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"group {selector!r}: ")


def test_plan_namespace_without_queue_on_shard_is_refused():
    known = places(ENTRIES[:2], ())
    assert by_shard("search", known=known) == [("main", "search search:find search:index")]
    with pytest.raises(SelectorError, match="has no queue on far; its queues are on main"):
        planned("search", known=known, shards=["far"])


def test_plan_without_workers_and_rules_is_refused():
    with pytest.raises(SelectorError, match="there is no queue"):
        planned("*", known=places([], ()))


@each_row(
    ("facts", "message"),
    [
        ({"shard": "fra"}, "MailWorker.shard: unknown shard 'fra' (did you mean 'far'?)"),
        ({"name": None}, "MailWorker.name: None is not allowed"),
        ({"queue": "a b"}, "MailWorker.queue: 'a b' is not allowed"),
        ({"retry_queue": 5}, "MailWorker.retry_queue: 5 is not allowed"),
        ({"aliases": "Old"}, "MailWorker.aliases: 'Old' is not a list"),
        ({"worker_name": None}, "worker_name: None is not a class name"),
    ],
)
def test_plan_malformed_generated_entry_is_refused(facts, message):
    with pytest.raises(ConfigurationError) as caught:
        places([{**entry("MailWorker"), **facts}])
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"workers/all_queues.yml: {message}")
    assert "application-worker generate-queues" in problem.message


def test_plan_warns_of_unknown_and_unserved_queues():
    def remarks(*selectors, **selection):
        planner = Planner(places(), Selection(**selection))
        return planner.warnings(planner.plan(selectors, GroupSize(slots=1)))

    assert remarks("default,search,stranger", "*") == []
    (near,) = remarks("defualt,default", "defualt")
    assert near.startswith("no worker is routed to the queue 'defualt' (did you mean 'default'?)")
    assert remarks("mail,default", shards=("far",)) == [
        "jobs of 'default' go to main; it is served on far as requested"
    ]
    assert remarks("new,old") == ["the routing rules send no jobs to new, old; only jobs that are left there run"]


# --- compared with a simple oracle ------------------------------------------------------------------------------------

WORKERS = ("AWorker", "BWorker", "CWorker", "DWorker")
QUEUES = ("a", "x:a", "x:b", "x", "y:c", "q", "y")
_some = st.none() | st.sampled_from(SHARDS)
_entries = st.lists(
    st.builds(
        lambda worker, namespace, urgency, shard, queue, retry: entry(
            worker, queue_namespace=namespace, urgency=urgency, shard=shard, queue=queue, retry_queue=retry
        ),
        st.sampled_from(WORKERS),
        st.none() | st.sampled_from(["x", "y"]),
        st.sampled_from(["high", "low"]),
        _some,
        st.none() | st.sampled_from(QUEUES),
        st.none() | st.sampled_from(QUEUES),
    ),
    unique_by=lambda one: one["worker_name"],
    max_size=4,
)
_rules = st.lists(
    st.builds(
        RoutingRule,
        st.sampled_from(["urgency=high", "queue_namespace=x", "worker_name=AWorker,BWorker", "*"]),
        st.none() | st.sampled_from(QUEUES),
        _some,
    ),
    max_size=3,
)
_names = st.lists(st.sampled_from([*QUEUES, "x:*", "y:*"]), min_size=1, max_size=3).map(",".join) | st.just("*")
_queries = st.sampled_from(["urgency=high", "queue_namespace!=x", "worker_name=CWorker", "*"])
_MATCH = {
    "urgency=high": lambda one: one["urgency"] == "high",
    "queue_namespace=x": lambda one: one["queue_namespace"] == "x",
    "queue_namespace!=x": lambda one: one["queue_namespace"] != "x",
    "worker_name=AWorker,BWorker": lambda one: one["worker_name"] in ("AWorker", "BWorker"),
    "worker_name=CWorker": lambda one: one["worker_name"] == "CWorker",
    "*": lambda one: True,
}


def jobs_of(one, rules):
    """Return the pairs of queue and shard to which the jobs of a worker go."""
    rule = next((rule for rule in rules if _MATCH[rule.query](one)), RoutingRule("*", None))
    shard = one["shard"] or rule.shard or "main"
    return {(queue, shard) for queue in (one["queue"] or rule.queue or one["name"], one["retry_queue"]) if queue}


def named_by(selector, known, spare):
    """Return pairs of queue and shard, names that are queues themselves, and unknown names."""
    chosen, own, unknown = set(), set(), set()
    for name in selector.split(","):
        namespace = name.removesuffix(":*")
        members = {(queue, shard) for queue, shard in known if queue.startswith(f"{namespace}:")}
        itself = {(queue, shard) for queue, shard in known if queue == name}
        if not members and not itself:
            unknown.add(name)
            itself = {(name, shard) for shard in spare}
        if itself:
            own.add(name)
        elif name == namespace:
            itself = {(name, shard) for _, shard in members}
        chosen |= members | itself
    return chosen, own, unknown


def oracle(selector, entries, rules, *, by_query, negate, shards):
    """Return the pairs of queue and shard to serve; empty when the plan must be refused."""
    routed = {(rule.queue, rule.shard or "main") for rule in rules if rule.queue}
    routed |= {pair for one in entries for pair in jobs_of(one, rules)}
    named = {queue for queue, _ in routed}
    known = routed | {(one["name"], one["shard"] or "main") for one in entries if one["name"] not in named}
    own, unknown = set(), set()
    if by_query:
        chosen = {pair for one in entries if _MATCH[selector](one) for pair in jobs_of(one, rules)}
    elif selector == "*":
        chosen = routed
    else:
        chosen, own, unknown = named_by(selector, known, shards or ["main"])
    if not chosen or any(negate or name.endswith("*") for name in unknown):
        return set()
    if negate:
        left_out = {queue for queue, _ in chosen}
        chosen, own = {pair for pair in routed if pair[0] not in left_out}, set()
    if not shards:
        return chosen
    on = {pair for pair in chosen if pair[1] in shards}
    return on | {(queue, shard) for queue in own - {queue for queue, _ in on} for shard in shards}


@given(
    _entries,
    _rules,
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from(SHARDS), unique=True, max_size=2),
    st.data(),
)
def test_plan_of_any_selector_agrees_with_the_oracle(entries, rules, by_query, negate, shards, data):
    selector = data.draw(_queries if by_query else _names)
    known = places(entries, rules)
    wanted = oracle(selector, entries, rules, by_query=by_query, negate=negate, shards=shards)
    try:
        found = planned(selector, known=known, by_query=by_query, negate=negate, shards=shards)
    except SelectorError:
        assert not wanted
        return
    assert {(queue, one.shard) for one in found for queue in one.queues} == wanted
    assert len({one.shard for one in found}) == len(found)
    for one in found:  # the child reads its options as the plan means them
        weights = tuple(one.queues.items())
        served = dict(weights if one.no_namespaces else expand_queues(weights, known.known).weights)
        assert set(served) == set(one.queues)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Create a folder with three shards and the rules and workers above, and make it the working directory."""
    (tmp_path / "config").mkdir()
    (tmp_path / "workers").mkdir()
    shards = {name: {"url": "redis://127.0.0.1:1"} for name in SHARDS}
    (tmp_path / "config" / "redis.yml").write_text(json.dumps({"shards": shards}))
    (tmp_path / "config" / "routing.yml").write_text(json.dumps({"routing_rules": RULES}))
    (tmp_path / "config" / "application.yml").write_text("retired_workers: {GoneWorker: removed}")
    (tmp_path / "workers" / "all_queues.yml").write_text(json.dumps(ENTRIES))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cluster(*arguments):
    return CliRunner().invoke(main, ["cluster", *arguments])


def test_dry_run_prints_comments_and_shell_commands(project):
    shown = cluster("mail,default", "search:*", "--dryrun", "--min-concurrency", "3", "-t", "5", "-r", "jobs")
    assert (shown.exit_code, shown.stderr) == (0, "")
    comments, commands = shown.stdout.splitlines()[::2], shown.stdout.splitlines()[1::2]
    assert comments == [
        "# worker-0-0 of 'mail,default': shard main, 3 slots, 1 queue: default",
        "# worker-0-1 of 'mail,default': shard far, 3 slots, 1 queue: mail",
        "# worker-1-0 of 'search:*': shard main, 3 slots, 2 queues: search:find, search:index",
    ]
    variable, *argv = shlex.split(commands[2])
    assert variable == "FRAMEWORK_WORKER_ID=worker-1-0"
    options = "-P -m framework worker --shard main -t 5 -c 3 -r jobs -q search:find,1 -q search:index,1"
    assert argv[1:] == options.split()


def test_list_queues_prints_groups_shards_and_queues(project):
    shown = cluster("mail,default", "--list-queues", "--processes", "2", "-n")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "GROUP                 SHARD  QUEUE",
        *(f"all but mail,default  main   {queue}" for queue in ("gone", "search:find")),
        *(f"all but mail,default  far    {queue}" for queue in ("old_jobs", "search", "spare")),
        *(f"all but mail,default  side   {queue}" for queue in ("later", "mine")),
    ]


def test_all_queues_include_those_of_the_last_releases(project):
    """A new rule moves a class: jobs in its old queue must run, also on a shard to which its jobs go no more."""
    moved = {"place": "a.MailWorker", "queue": "mail", "shard": "main", "retry_queue": "mail_again"}
    gone = {"place": "a.GoneWorker", "queue": "lost", "shard": "removed"}
    content = {
        "workers": {"MailWorker": moved, "LostWorker": gone},
        "former_queues": {"aside:mail": {"side": "2026-01-01"}},
    }
    (project / "workers" / "released.yml").write_text(json.dumps(content))
    shown = cluster("*", "--list-queues")
    rows = [tuple(line.split()[1:]) for line in shown.stdout.splitlines()[1:]]
    assert {("main", "mail"), ("main", "mail_again"), ("side", "aside:mail"), ("far", "mail")} <= set(rows)
    assert "lost" not in shown.stdout
    assert "aside:mail" not in cluster("mail", "-n", "--list-queues", "--shard", "main").stdout
    assert cluster("aside", "--list-queues").stdout.splitlines()[2].split() == ["aside", "side", "aside:mail"]
    (project / "workers" / "released.yml").write_text("[]")
    assert "workers/released.yml: is not a manifest of releases" in cluster("*", "--list-queues").stderr


def test_dry_run_refuses_a_capsule_that_no_group_needs(project):
    assert cluster("mail", "--dryrun", "--capsule", "slow", "1", "mail").exit_code == 0
    shown = cluster("mail", "--dryrun", "--capsule", "slow", "1", "other")
    assert shown.exit_code == 2
    assert "--capsule slow: no group has other: name queues of a SELECTOR" in shown.stderr


def test_dry_run_prints_warnings_on_stderr(project):
    shown = cluster("defualt", "--dryrun")
    assert (shown.exit_code, len(shown.stdout.splitlines())) == (0, 2)
    assert "(did you mean 'default'?)" in shown.stderr


@each_row("arguments", [("*",), ("search:*",), ("urgency=high", "--queue-selector"), ("mail", "--negate")])
@each_row("text", [None, "5", "[", "- {worker_name: MailWorker}"])
def test_plan_without_generated_file_names_the_command(project, arguments, text):
    file = project / "workers" / "all_queues.yml"
    file.unlink() if text is None else file.write_text(text)
    refused = cluster(*arguments)
    assert (refused.exit_code, refused.stdout) == (78, "")
    assert "workers/all_queues.yml: " in refused.stderr
    assert "run application-worker generate-queues" in refused.stderr
    named = cluster("mail", "--dryrun")
    assert named.exit_code == (0 if text is None else 78)


def test_plan_invalid_rule_is_refused_before_start(project):
    (project / "config" / "routing.yml").write_text('{"routing_rules": [["urgncy=high", "x"]]}')
    refused = cluster("mail", "--dryrun")
    assert (refused.exit_code, refused.stdout) == (78, "")
    assert "unknown attribute 'urgncy'" in refused.stderr


def test_plan_of_a_thousand_workers_names_each_queue(project):
    others = dict.fromkeys(("feature_category", "weight", "version", "retry", "idempotent", "deduplicate"), "not_owned")
    many = [entry(f"Work{number}Worker", queue_namespace=f"ns{number % 20}", **others) for number in range(1000)]
    text = "\n".join(f"- {json.dumps(one)}" for one in many)
    (project / "workers" / "all_queues.yml").write_text(text)
    (project / "config" / "routing.yml").write_text("routing_rules: []")
    shown = cluster("*", ",".join(f"ns{number}" for number in range(20)), "--dryrun")
    assert [line.count(" -q ") for line in shown.stdout.splitlines()[1::2]] == [1001, 1020]


def test_dry_run_of_many_queues_prints_the_line_whole(project):
    queues = [f"queue_{number:04}" for number in range(3000)]
    shown = cluster(",".join(queues), "--dryrun")
    comment, line = shown.stdout.splitlines()
    assert len(line) > MOST
    assert comment.endswith("queue_0019 and 2980 more")
    assert shlex.split(line)[-2:] == ["-q", "queue_2999,1"]
    assert line.count(" -q ") == len(queues)
