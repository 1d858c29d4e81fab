"""Both libraries write zlib's format. The tests of compression and of interop with Ruby run with the extra ``fast``."""

import base64
import random
import subprocess
import sys
import zlib

import pytest

from framework.errors import PayloadError, PayloadLimitError
from framework.wire import compress as module
from framework.wire.compress import decompress_arguments, deflate, deflate_arguments, inflate_at_once
from framework.wire.json import dumps
from tests.tables import each_row

LIMIT = 10_000_000
LIBRARIES = ("isal", "zlib")
_random = random.Random(7)
RECORDS = [
    {"id": _random.randrange(10**8), "state": _random.choice(["open", "done"]), "title": f"Update {n:x}"}
    for n in range(2_500)
]
ARGUMENTS = {
    "empty": [],
    "records": [RECORDS],
    "same": ["ab" * 3_000_000],
    "base64": [base64.b64encode(_random.randbytes(110_000)).decode()],
    "wide": ["é😀\u2028" * 20_000],
}


@pytest.fixture(params=LIBRARIES)
def library(request, monkeypatch):
    if request.param == "zlib":
        monkeypatch.setattr(module, "_isal_compress", None)
        monkeypatch.setattr(module, "_new_inflater", zlib.decompressobj)
    assert (module._isal_compress is None) == (request.param == "zlib"), "scripts/setup installs the extra"
    return request.param


def stored(arguments):
    text = dumps(arguments)
    return {"args": [deflate_arguments(text).decode()], "compressed": True, "original_job_size_bytes": len(text)}


@each_row("kind", ARGUMENTS)
def test_deflate_is_read_by_zlib_and_here(library, kind):
    data = dumps(ARGUMENTS[kind])
    assert zlib.decompress(deflate(data)) == data
    payload = stored(ARGUMENTS[kind])
    decompress_arguments(payload, LIMIT)
    assert payload == {"args": ARGUMENTS[kind]}


def test_deflate_of_zlib_has_gitlabs_level(library):
    data = dumps(ARGUMENTS["records"])
    assert (deflate(data) == zlib.compress(data, 5)) == (library == "zlib")


@each_row("kind", ["records", "base64"])
def test_deflate_with_isal_is_about_as_small(kind):
    data = dumps(ARGUMENTS[kind])
    assert len(deflate(data)) < 1.1 * len(zlib.compress(data, 5))


def test_inflate_of_damaged_data_is_none_or_unchanged(library):
    text = dumps(ARGUMENTS["records"][:40])
    data = deflate(text)
    assert inflate_at_once(data, len(text)) == text
    assert inflate_at_once(data, len(text) - 1) is None
    found = set()
    for _ in range(2_000):
        damaged = bytearray(data)
        for _ in range(_random.choice((1, 2, 9))):
            damaged[_random.randrange(_random.choice((4, len(data))))] ^= 1 << _random.randrange(8)
        inflated = inflate_at_once(bytes(damaged[: _random.choice((len(data), _random.randrange(len(data))))]), 10**6)
        found.add(inflated)
        # ISA-L accepts some headers that zlib refuses, but only with the right checksum.
        assert inflated in (None, text)
    assert None in found


@pytest.mark.proves("R60")
def test_inflating_data_of_either_library_is_refused(library):
    payload = stored(["0" * 50_000_000])
    assert len(payload["args"][0]) < 500_000
    with pytest.raises(PayloadLimitError, match="decompressed_limit"):
        decompress_arguments(payload, LIMIT)


@each_row(
    ("damage", "words"),
    [
        (lambda data: b"\xff" + data[1:], "Error -3 while decompressing data: incorrect header check"),
        (lambda data: data[:-4] + b"0000", "Error -3 while decompressing data: incorrect data check"),
        (lambda data: data[:-4], "cut off"),
        (lambda data: data + b"more", "4 bytes follow"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_has_the_same_error_for_either_library(library, damage, words):
    payload = stored(ARGUMENTS["records"])
    payload["args"] = [base64.b64encode(damage(base64.b64decode(payload["args"][0]))).decode()]
    with pytest.raises(PayloadError, match=words):
        decompress_arguments(payload, LIMIT)


def test_deflate_without_the_extra_uses_zlib():
    code = (
        "import sys; sys.modules['isal'] = None; from framework.wire.compress import deflate; import zlib;"
        "assert deflate(b'a' * 999) == zlib.compress(b'a' * 999, 5)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_of_framework_loads_no_isal():
    code = "import sys, framework; assert not [name for name in sys.modules if name.startswith('isal')]"
    subprocess.run([sys.executable, "-c", code], check=True)
