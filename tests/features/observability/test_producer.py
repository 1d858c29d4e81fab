"""``/metrics`` of processes that push jobs: the apps, and several processes that count in one folder."""

import asyncio
import json

from framework.telemetry.job_events import job_events
from tests.features.observability.conftest import series_of
from tests.features.observability.test_exposition import promtool_says

PUSHES = """
import asyncio, json, sys
sys.path.insert(0, "")
import jobs
from datetime import timedelta
from framework import metrics
wsgi_app, asgi_app = metrics.wsgi_app(), metrics.asgi_app()
for _ in range(3):
    jobs.NoopWorker.perform_async()
jobs.NoopWorker.perform_in(timedelta(hours=1))
jobs.NoopWorker.perform_bulk([()] * 5)

answers = []
def start_response(status, headers):
    answers.append([status, dict(headers)["Content-Type"]])
body = b"".join(wsgi_app({"REQUEST_METHOD": "GET", "HTTP_ACCEPT": "text/plain"}, start_response))
answers[0].append(body.decode())

async def ask():
    sent = []
    async def send(message):
        sent.append(message)
    headers = [(b"accept", b"application/openmetrics-text; version=1.0.0")]
    await asgi_app({"type": "http", "method": "GET", "headers": headers}, None, send)
    kind = dict(sent[0]["headers"])[b"content-type"].decode()
    answers.append([sent[0]["status"], kind, sent[1]["body"].decode()])
asyncio.run(ask())
print(json.dumps(answers))
"""


def pushed(text, scheduling):
    return sum(
        value
        for (name, labels), value in series_of(text).items()
        if name == "sidekiq_enqueued_jobs_total"
        and ("scheduling", scheduling) in labels
        and ("worker", "NoopWorker") in labels
    )


def answers_of(site, **env):
    done = site.run("-c", PUSHES, **env)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_producer_answers_by_wsgi_and_asgi(site, redis):
    (status, kind, text), (code, open_kind, open_text) = answers_of(site)
    assert (status, kind) == ("200 OK", "text/plain; version=0.0.4; charset=utf-8")
    assert (code, open_kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert promtool_says(text) == ""
    assert (pushed(text, "immediate"), pushed(text, "delayed")) == (8, 1)
    assert open_text.endswith("# EOF\n")
    assert 'worker="LongWorker"' in text  # a class that was not pushed


def test_each_process_of_a_folder_answers_for_all(site, redis):
    for runs in (1, 2, 3):
        text = answers_of(site, FRAMEWORK_METRICS__DIRECTORY="counts")[0][2]
        assert (pushed(text, "immediate"), pushed(text, "delayed")) == (8 * runs, runs)
    assert promtool_says(text) == ""
    assert (site.folder / "counts" / "ended.counts").exists()


def test_asgi_app_takes_part_in_the_lifespan(monkeypatch):
    monkeypatch.setattr(job_events, "is_scraped", False)
    monkeypatch.setattr(job_events, "observers", ())
    from framework.metrics import asgi_app

    sent, messages = [], iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message["type"])

    asyncio.run(asgi_app()({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
