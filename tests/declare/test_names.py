"""Test wire names and queue names (design section 4, "Names")."""

import re

from hypothesis import given
from hypothesis import strategies as st

from framework.declare import registry
from framework.declare.names import queue_name, wire_name
from tests.tables import each_row


@each_row(
    ("module", "class_name", "expected"),
    [
        ("workers.chaos.sleep_worker", "SleepWorker", "Chaos::SleepWorker"),
        ("barworkers.jobs", "NoopWorker", "NoopWorker"),
        ("jobs", "NoopWorker", "NoopWorker"),
        ("__main__", "NoopWorker", "NoopWorker"),
        ("workers", "NoopWorker", "NoopWorker"),
        ("workers.noop_worker", "NoopWorker", "NoopWorker"),
        ("shop.workers.mail.daily.digest", "DigestWorker", "Mail::Daily::DigestWorker"),
        ("workers.a.workers.b.mod", "W", "B::W"),
        ("shop.billing.jobs", "ChargeWorker", "Billing::ChargeWorker"),
        ("shop.workers", "ChargeWorker", "ChargeWorker"),  # a module called workers is no package
        ("workers.code_index.index_file_worker", "IndexFileWorker", "CodeIndex::IndexFileWorker"),
        ("workers.v2_api.x", "W", "V2Api::W"),
        ("workers._private.x", "W", "Private::W"),
        ("workers.HTTPStuff.x", "W", "HTTPStuff::W"),
        ("workers.chaos.x", "Outer.InnerWorker", "Chaos::Outer::InnerWorker"),
    ],
    around=registry.isolated,
)
def test_wire_name_of_module_and_class(module: str, class_name: str, expected: str):
    assert wire_name(module, class_name) == expected


@each_row(
    ("name", "namespace", "expected"),
    [
        ("HTTPHookWorker", None, "http_hook"),
        ("Chaos::SleepWorker", None, "chaos_sleep"),
        ("Chaos::SleepWorker", "ns", "ns:chaos_sleep"),
        ("PipelineHooksWorker", "pipeline_hooks", "pipeline_hooks:pipeline_hooks"),
        ("PostReceive", None, "post_receive"),
        ("S3UploadWorker", None, "s3_upload"),
        ("OAuth2TokenWorker", None, "o_auth2_token"),
        ("WorkerPoolWorker", None, "worker_pool"),
        ("Worker", None, "worker"),
        ("Chaos::Worker", None, "chaos_worker"),
        ("JiraImport::AdvanceStageWorker", None, "jira_import_advance_stage"),
    ],
    around=registry.isolated,
)
def test_queue_name_of_wire_name_and_namespace(name: str, namespace: str | None, expected: str):
    assert queue_name(name, namespace) == expected


_WORDS = st.from_regex(r"[A-Z][A-Za-z0-9]{0,12}", fullmatch=True).filter(lambda word: word != "Worker")


@given(st.lists(_WORDS, min_size=1, max_size=4))
def test_queue_name_agrees_with_underscore_of_rails(segments: list[str]):
    name = "::".join(segments)
    stem = name.removesuffix("Worker")
    first = re.sub(r"([A-Z\d]+)([A-Z][a-z])", r"\1_\2", stem.replace("::", "/"))
    expected = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", first).replace("/", "_").lower()
    assert queue_name(name, None) == expected
