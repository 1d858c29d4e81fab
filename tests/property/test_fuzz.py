"""Feed hostile input to every reader and writer of foreign data: the same inputs each time, and new ones.

The million is run by hand: ``scripts/prove fuzz`` (docs/internals/proofs.md).
"""

import ctypes
import json
import secrets
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.wire.job import timestamp
from tests.harness import examples
from tests.proofs.fuzz_case import TARGETS, attempt, named
from tests.proofs.fuzz_output import check_ruby, stop_ruby
from tests.proofs.fuzz_text import check_option, check_query, check_url, check_yaml, remove_folder
from tests.proofs.fuzz_wire import check_payload

SEED = 5
FRESH = secrets.randbelow(1_000_000)
MOST = 700
PER_WEIGHT = 60


@pytest.fixture(scope="module", autouse=True)
def tidied():
    yield
    stop_ruby()
    remove_folder()


def findings(name, seed, most=MOST):
    target = named(name)
    for number in range(min(most, PER_WEIGHT * target.weight)):
        found = attempt(target, seed, number).finding
        if found is not None:
            yield found


def nothing_found(*names):
    for name in names:
        for seed in (SEED, FRESH):
            for found in findings(name, seed):
                pytest.fail(
                    f"scripts/prove fuzz --seed {seed} --target {name} --case {found.number}: {found.what}\n{found.trace}"
                )


@pytest.mark.proves("F38", "R51", "R54")
def test_payloads_are_read_or_refused_and_keep_fields():
    nothing_found("payload")


@pytest.mark.proves("R60")
def test_compressed_arguments_are_bounded_or_refused():
    nothing_found("compressed")


def test_fuzz_process_records_stop_no_reader():
    nothing_found("frames")


@pytest.mark.proves("R34")
def test_fuzz_members_of_sets_stop_no_poller():
    nothing_found("due")


def test_flags_are_read_or_count_as_not_set():
    nothing_found("flag")


def test_user_input_is_read_or_refused():
    nothing_found("query", "yaml", "settings", "sidekiq-file", "option", "url")


def test_fuzz_job_log_is_one_line():
    nothing_found("log")


@pytest.mark.proves("R26", "F29")
def test_fuzz_error_gives_a_readable_retry_member():
    nothing_found("error")


@pytest.mark.proves("F38")
def test_fuzz_queue_bytes_have_outcome_and_lines():
    nothing_found("run")


@pytest.mark.proves("I22", "I23")
def test_written_json_is_read_again_here_and_in_ruby():
    nothing_found("ruby")


def test_fuzz_every_target_has_a_test():
    named_here = {
        "payload",
        "compressed",
        "frames",
        "due",
        "flag",
        "query",
        "yaml",
        "settings",
        "sidekiq-file",
        "option",
        "url",
    }
    assert {target.name for target in TARGETS} == named_here | {"log", "error", "run", "ruby"}


def inflated(data, _):
    yield zlib.decompress(data)


def loads_recursively(data):
    """Parse JSON in Python, where each level costs a frame: from 3.14 on the parser in C reads 100,000 levels."""
    decoder = json.JSONDecoder()
    decoder.parse_array, decoder.parse_object = json.decoder.JSONArray, json.decoder.JSONObject
    decoder.scan_once = json.scanner.py_make_scanner(decoder)
    return decoder.decode(data if isinstance(data, str) else data.decode())


BROKEN = {
    "payload": ("framework.recover.reaper.decode", json.loads),
    "compressed": ("framework.wire.compress._inflated", inflated),
    "frames": ("framework.process.record.loads_object", loads_recursively),
    "flag": ("framework.features.flags.flag._number", lambda value: value),
    "due": ("framework.schedule.due_job_planner.rewrite", lambda data, payload: json.dumps(payload)[:-1].encode()),
    "query": (
        "framework.route.query.Term.matches",
        lambda self, facts: not facts[self.attribute].isdisjoint(self.values),
    ),
    "log": ("framework.telemetry.logs._text_of", str),
    "error": ("framework.finish.retry.error_message", lambda error, limit: str(error)),
    "run": ("framework.execute.job_log.timestamp", lambda value: timestamp(value) or value),
    "ruby": (
        "tests.proofs.fuzz_output.dumps",
        lambda value: json.dumps(value, ensure_ascii=False).replace("1e+22", "NaN").encode(),
    ),
}


@pytest.fixture
def freed_memory_returned():
    """Return freed memory to the system: the process would reuse it without a rise of the peak."""
    ctypes.CDLL(None).malloc_trim(0)


@pytest.mark.usefixtures("freed_memory_returned")
@pytest.mark.parametrize("name", BROKEN)
def test_fuzz_finds_a_broken_target(monkeypatch, name):
    monkeypatch.setattr(*BROKEN[name])
    found = next(findings(name, SEED), None)
    assert found is not None
    assert found.what


@settings(max_examples=examples(80))
@given(st.binary(max_size=300))
def test_fuzz_bytes_are_a_payload_or_refused(data):
    assert check_payload(data) in ("read", "PayloadError")


@settings(max_examples=examples(80))
@given(st.text(max_size=100))
def test_fuzz_text_is_read_or_refused(text):
    for check in (check_query, check_yaml, check_option, check_url):
        assert check(text) in ("read", "QueryError", "YamlError", "ValueError")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.proves("I22", "I23")
@settings(max_examples=examples(80))
@given(JSON)
def test_fuzz_json_is_the_same_in_ruby(value):
    assert check_ruby([value]) in ("the same", "no Ruby here")
