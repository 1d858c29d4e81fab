import json
import random
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import PayloadError, PayloadLimitError
from framework.wire.footprint import (
    LARGE_PAYLOAD,
    MAX_MEMORY_PER_BYTE,
    Footprint,
    MemoryBudget,
    footprint_of,
    is_nested_deeper,
    may_exceed,
    measure,
)
from framework.wire.json import MAX_NESTING, dumps, loads
from tests.harness import until
from tests.tables import each_row

COUNT = 40_000
_RANDOM = random.Random(1)

DOCUMENTS = {
    "small numbers": "[" + ",".join(["1"] * COUNT) + "]",
    "numbers": "[" + ",".join(str(10**9 + n) for n in range(COUNT)) + "]",
    "fractions": "[" + ",".join(str(n + 0.5) for n in range(COUNT)) + "]",
    "long numbers": "[" + ",".join(str(10**60 + n) for n in range(COUNT)) + "]",
    "empty lists": "[" + ",".join(["[]"] * COUNT) + "]",
    "lists of one": "[" + ",".join(["[1]"] * COUNT) + "]",
    "lists of nine": "[" + ",".join(["[1,2,3,4,5,6,7,8,9]"] * COUNT) + "]",
    "nested lists": "[" + ",".join(["[" * 60 + "]" * 60] * (COUNT // 60)) + "]",
    "empty objects": "[" + ",".join(["{}"] * COUNT) + "]",
    "objects": "[" + ",".join(['{"a":1}'] * COUNT) + "]",
    "objects of new keys": "[" + ",".join(f'{{"{n}":1}}' for n in range(COUNT)) + "]",
    "nested objects": "[" + ",".join(['{"":' * 60 + "1" + "}" * 60] * (COUNT // 60)) + "]",
    "one large object": "{" + ",".join(f'"{n}":{n}' for n in range(COUNT)) + "}",
    "empty texts": "[" + ",".join(['""'] * COUNT) + "]",
    "texts": "[" + ",".join(f'"{n}"' for n in range(COUNT)) + "]",
    "one text": '["' + "a" * 20 * COUNT + '"]',
    "a Latin text": '["é' + "a" * 20 * COUNT + '"]',
    "a wide text": '["語' + "a" * 20 * COUNT + '"]',
    "an astral text": '["\U0001f600' + "a" * 20 * COUNT + '"]',
    "wide texts": "[" + ",".join(f'"\U0001f600{n}"' for n in range(COUNT)) + "]",
    "an escaped wide text": '["\\u8a9e' + "a" * 20 * COUNT + '"]',
    "an escaped astral text": '["\\ud83d\\ude00' + "a" * 20 * COUNT + '"]',
    "rows": json.dumps([{"id": n, "name": f"name {n}", "at": n / 7, "on": None} for n in range(COUNT // 4)]),
}


@pytest.mark.campaign
@each_row("name", DOCUMENTS)
def test_footprint_covers_the_memory_of_parsing(name):
    data = DOCUMENTS[name].encode()
    loads(data)  # the cache of keys is filled
    tracemalloc.start()
    value = loads(data, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert value
    memory = footprint_of(data).memory
    assert peak <= memory + 1_000
    assert memory <= 11 * peak


@each_row("name", DOCUMENTS)
def test_max_memory_per_byte_holds_for_every_kind(name):
    data = DOCUMENTS[name].encode()
    assert footprint_of(data).memory < MAX_MEMORY_PER_BYTE * len(data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
HARD_TEXTS = st.text(alphabet='"\\[]{},:u0d8é語\U0001f600\x1f\n')


def counted(value):
    """Lists, objects, keys and depth, by a walk."""
    if isinstance(value, dict):
        inner = [counted(one) for one in value.values()]
        own = (0, 1, len(value))
    elif isinstance(value, list):
        inner = [counted(one) for one in value]
        own = (1, 0, 0)
    else:
        return (0, 0, 0, 0)
    sums = tuple(mine + sum(one[at] for one in inner) for at, mine in enumerate(own))
    return (*sums, 1 + max((one[3] for one in inner), default=0))


@given(VALUES | st.lists(HARD_TEXTS) | st.dictionaries(HARD_TEXTS, st.lists(HARD_TEXTS)), st.booleans(), st.data())
def test_footprint_of_chunks_equals_that_of_the_whole(value, ascii_only, drawn):
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    whole = footprint_of(data)
    lists, objects, keys, depth = counted(value)
    assert (whole._lists, whole._objects, whole._colons) == (lists, objects, keys)
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    parts = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    again = Footprint(type(whole._structure)())
    for part in parts:
        again.add(part)
    assert (again.size, again._lists, again._objects, again._colons, again._commas, again._quotes) == (
        *(whole.size, whole._lists, whole._objects, whole._colons, whole._commas, whole._quotes),
    )
    by_parts = Footprint()
    for part in parts:
        by_parts.add(part)
    assert by_parts.memory >= again.memory or by_parts._width >= again._width
    assert not is_nested_deeper(data, depth)
    assert depth == 0 or is_nested_deeper(data, depth - 1)


def test_footprint_counts_structure_in_texts_as_text():
    table = json.dumps(["id,name,[x],{y}:z\n" * 1_000_000]).encode()
    found = measure(lambda: [table], 100_000_000)
    assert found.memory < 2 * len(table)


def test_measure_of_inflating_data_stops_at_the_limit():
    read = []

    def endless():
        for number in range(10**9):
            read.append(number)
            yield b"[]," * 10_000

    with pytest.raises(PayloadLimitError, match=r"size_limit\.decoded_limit") as caught:
        measure(endless, 50_000_000)
    assert (caught.value.limit, caught.value.setting) == (50_000_000, "size_limit.decoded_limit")
    assert len(read) < 100


def test_loads_above_the_limit_is_refused_before_parsing():
    data = b"[" + b"[]," * 2_000_000 + b"1]"
    tracemalloc.start()
    with pytest.raises(PayloadLimitError):
        loads(data, 50_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_loads_of_large_json_reserves_before_parsing():
    data = b"[" + b"[]," * 200_000 + b"1]"
    asked = []
    assert len(loads(data, 256_000_000, asked.append)) == 200_001
    assert len(asked) == 1
    assert asked[0] == footprint_of(data).memory > LARGE_PAYLOAD
    loads(b"[" + b"1," * 20_000 + b"1]", 256_000_000, asked.append)
    assert len(asked) == 1


def test_loads_of_short_json_measures_nothing():
    assert not may_exceed(1_000_000 // MAX_MEMORY_PER_BYTE, 1_000_000)
    assert may_exceed(1_000_000 // MAX_MEMORY_PER_BYTE + 1, 1_000_000)


@pytest.mark.parametrize("digits", [4_300, 4_301, 9_000])
def test_dumps_of_an_unreadable_number_is_refused(digits):
    value = [10 ** (digits - 1), "1" * 9_000]
    if digits > 4_300:
        with pytest.raises((PayloadError, ValueError)):
            dumps(value)
    else:
        assert loads(dumps(value)) == value


@pytest.mark.parametrize("levels", [MAX_NESTING, MAX_NESTING + 1])
def test_dumps_of_a_large_value_checks_its_nesting(levels):
    value = ["]]]" * 3_000, '"\\"[[['] * 100
    for _ in range(levels - 1):
        value = [value]
    if levels > MAX_NESTING:
        with pytest.raises(PayloadError, match="deeper than 64"):
            dumps(value)
    else:
        assert loads(dumps(value)) == value


def going_on():
    return False


class Taker(threading.Thread):
    def __init__(self, budget, amount, stopping=going_on):
        super().__init__(daemon=True)
        self.budget, self.amount, self.stopping = budget, amount, stopping
        self.share = "none yet"
        self.start()

    def run(self):
        self.share = self.budget.acquire(self.amount, self.stopping)


def waiting(budget, count):
    until(lambda: len(budget._waiters) == count, f"{count} wait")


def test_acquire_without_room_waits_for_a_release():
    budget = MemoryBudget(100)
    assert budget.acquire(60, going_on) == 60
    second = Taker(budget, 50)
    waiting(budget, 1)
    budget.release(60)
    second.join(10)
    assert second.share == 50


def test_acquire_is_first_come_first_served():
    budget = MemoryBudget(100)
    budget.acquire(60, going_on)
    large = Taker(budget, 90)
    waiting(budget, 1)
    assert budget.try_acquire(10) is None
    small = Taker(budget, 10)
    waiting(budget, 2)
    budget.release(60)
    large.join(10)
    small.join(10)
    assert (large.share, small.share) == (90, 10)


def test_acquire_above_the_capacity_gets_all_of_it():
    budget = MemoryBudget(100)
    assert budget.acquire(1_000, going_on) == 100
    assert budget.try_acquire(1) is None
    budget.release(100)
    assert budget.try_acquire(1_000) == 100


def test_acquire_in_a_stopping_process_returns_none():
    budget, stop = MemoryBudget(100), threading.Event()
    budget.acquire(100, going_on)
    stopped, patient = Taker(budget, 50, stop.is_set), None
    waiting(budget, 1)
    patient = Taker(budget, 50)
    waiting(budget, 2)
    stop.set()
    stopped.join(10)
    assert stopped.share is None
    budget.release(100)
    patient.join(10)
    assert patient.share == 50


def test_acquire_by_many_threads_stays_within_capacity():
    budget, lock, most, at = MemoryBudget(100), threading.Lock(), [0], [0]

    def work(seed):
        for number in range(100):
            share = budget.acquire(1 + (seed * 37 + number * 11) % 100, going_on)
            with lock:
                at[0] += share
                most[0] = max(most[0], at[0])
            with lock:
                at[0] -= share
            budget.release(share)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert 0 < most[0] <= 100
    assert (budget._used, len(budget._waiters)) == (0, 0)
