"""The payload store: blobs in a folder and in a bucket; arguments that are read back, with and without encryption and signature."""

import base64
import os
import shutil
import urllib.request

import pytest

from framework.errors import (
    MissingKeyError,
    OffloadedArgumentsError,
    PayloadError,
    PayloadStoreError,
    StoredBlocksError,
    UnsafeFileError,
)
from framework.features.encryption import stored_blocks
from framework.features.encryption.arguments import ArgumentEncryption
from framework.features.encryption.blob_store import FolderStore, S3Store
from framework.features.encryption.offload import PayloadOffload, blob_name
from framework.features.encryption.protection import ConfiguredProtection
from framework.features.encryption.signatures import KeyVersions, PayloadSignatures
from framework.features.encryption.stored_blocks import StoredBlocks
from framework.wire import blocks
from framework.wire.blocks import HeldMember
from framework.wire.compress import decompress_arguments, deflate_arguments
from framework.wire.json import dumps, loads
from tests.harness import forked

KEYS = KeyVersions(1, {1: b"1" * 32})
ARGUMENTS = [os.urandom(3_000).hex(), 7]


@pytest.fixture(scope="module")
def endpoint():
    """A server with the API of S3, over HTTP, with the bucket ``jobs``."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/jobs", method="PUT"), timeout=10).close()
    yield url
    server.stop()


@pytest.fixture
def stores(endpoint, tmp_path, monkeypatch):
    """A folder, and a bucket."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    bucket = S3Store("jobs", tmp_path.name, endpoint=endpoint, region="us-east-1")
    return [FolderStore(tmp_path / "payloads"), bucket]


def job(arguments=ARGUMENTS):
    text = dumps(arguments)
    stored = {"compressed": True, "original_job_size_bytes": len(text), "args": [deflate_arguments(text).decode()]}
    return {"class": "ImportWorker", "jid": "a" * 24, **stored}


def read(payload, protection):
    # As from Redis.
    found = loads(dumps(payload), None)
    decompress_arguments(found, 1_000_000, protected=protection.reader)
    return found["args"]


def test_store_keeps_lists_and_deletes_blobs(stores):
    for store in stores:
        check_blobs(store)

    def use_in_child():
        with pytest.raises(OSError, match="was forked after"):
            stores[1].get("blobs/ab/one")

    assert forked(use_in_child) == 0


def check_blobs(store):
    assert list(store.list("blobs")) == []
    assert store.get("blobs/ab/one") is None
    store.put("blobs/ab/one", b"1" * 70_000)
    store.put("blobs/cd/two", b"")
    store.put("blobs/ab/one", b"new")
    store.put("other/three", b"3")
    assert (store.get("blobs/ab/one"), store.get("blobs/cd/two")) == (b"new", b"")
    found = {one.name: one for one in store.list("blobs")}
    assert {name: one.size for name, one in found.items()} == {"blobs/ab/one": 3, "blobs/cd/two": 0}
    assert all(one.modified > 1_700_000_000 for one in found.values())
    for name in ("blobs/ab/one", "blobs/ab/one", "blobs/none"):
        store.delete(name)
    assert [one.name for one in store.list("blobs")] == ["blobs/cd/two"]


def test_offloaded_arguments_are_read_back(stores):
    for store in stores:
        check_arguments(store)


def test_blocks_of_jobs_are_kept_and_read_back(stores, monkeypatch):
    monkeypatch.setattr(stored_blocks, "_KEPT_S", 0.0)
    members = [HeldMember(b'["q"]\n{"jid":"%d"}' % number, float(number)) for number in range(3)]
    for store in stores:
        kept = StoredBlocks(PayloadOffload(store, "store", 1_000))
        for block in (blocks.pack("default", [b'{"jid":"a"}', b'{"jid":"b"}']), blocks.pack_members(members)):
            reference = kept.keep(block)
            assert blocks.is_block(reference)
            assert blocks.count(reference) == blocks.count(block)
            assert kept.read(reference) == block
            assert kept.read(block) == block
            kept.forget(reference)
            with pytest.raises(PayloadError, match="has no blob"):
                kept.read(reference)
        assert list(store.list("blobs")) == []


def test_bucket_that_failed_is_not_asked_again_at_once(endpoint):
    kept = StoredBlocks(PayloadOffload(S3Store("none", "", endpoint=endpoint, region="us-east-1"), "store", 1_000))
    for _ in range(2):
        with pytest.raises(StoredBlocksError, match="did not take a block"):
            kept.keep(blocks.pack("default", [b'{"jid":"a"}']))
    kept._offload = None
    with pytest.raises(StoredBlocksError, match="did not take a block"):
        kept.keep(b"not tried")


def check_arguments(store):
    """Whatever protects them; and every change of the job, of its blob and of the store is seen."""
    offload, encryption = PayloadOffload(store, "store", 1_000), ArgumentEncryption(KEYS)
    for encrypts in (False, True):
        protection = ConfiguredProtection(encryption if encrypts else None, PayloadSignatures(KEYS), offload)
        payload = {**job(), **({"aw_encryption_key": "1.x"} if encrypts else {})}
        protection.protect(payload, sign=True)
        (blob_id,) = payload["args"]
        assert len(dumps(payload)) < 600
        assert read(payload, protection) == ARGUMENTS
        assert protection.is_signed(payload)
        # The signature covers the digest of the blob, and that there is one.
        for change in ({"args": [blob_id[::-1]]}, {"aw_offloaded": 1}):
            assert not protection.is_signed({**payload, **change})
        assert (
            offload.fetch(payload, blob_id) == base64.b64decode(deflate_arguments(dumps(ARGUMENTS)))
        ) is not encrypts
        protection.bind_to(payload, "b" * 24, sign=True)
        assert read(payload, protection) == ARGUMENTS
        # Bound to the id: another blob.
        assert (payload["args"] == [blob_id]) is not encrypts
        for wrong in ("../../etc/passwd", blob_id.upper(), ""):
            with pytest.raises(PayloadError, match="is no id of a blob"):
                read({**payload, "args": [wrong]}, protection)
        store.put(blob_name(payload["args"][0]), b"changed")
        with pytest.raises(PayloadError, match="another digest"):
            read(payload, protection)
        offload.delete(payload["args"][0])
        with pytest.raises(PayloadError, match="has no blob"):
            read(payload, protection)
    payload = {**job(), "aw_encryption_key": "1.x"}
    ConfiguredProtection(encryption, None, offload).protect(payload, sign=False)
    with pytest.raises(MissingKeyError):
        read(payload, ConfiguredProtection(offload=offload))
    with pytest.raises(OffloadedArgumentsError, match="no payload store is configured"):
        read(payload, ConfiguredProtection(encryption))
    small = job([1])
    offload.move_out(small)
    assert small == job([1])
    # A file system that is not mounted, or another bucket: no arguments are missing there.
    store.delete("payload-store")
    store.delete(blob_name(payload["args"][0]))
    with pytest.raises(OffloadedArgumentsError, match="is no payload store"):
        read(payload, ConfiguredProtection(encryption, None, offload))


def test_store_that_fails_is_named(tmp_path, endpoint, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    (tmp_path / "file").write_text("")
    broken = [
        FolderStore(tmp_path / "not mounted" / "payloads"),
        FolderStore(tmp_path / "file"),
        S3Store("jobs", "", endpoint="http://127.0.0.1:1", region="us-east-1"),
        S3Store("none", "", endpoint=endpoint, region="us-east-1"),
    ]
    for store in broken:
        offload, payload = PayloadOffload(store, "the-url", 1_000), job()
        with pytest.raises(PayloadStoreError, match=r"ImportWorker: .* the-url, which did not take them"):
            offload.move_out(payload)
        assert payload == job()
        with pytest.raises(OffloadedArgumentsError, match="the-url"):
            offload.fetch(payload, f"{'a' * 24}-{'b' * 64}")
        # Left to the sweep.
        offload.delete(f"{'a' * 24}-{'b' * 64}")
    # A folder directly below a mount point, or the mount point itself, while nothing is mounted there.
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "payloads", tmp_path / "empty"):
        offload = PayloadOffload(FolderStore(folder), "the-url", 1_000, made_before=True)
        with pytest.raises(PayloadStoreError, match=r"lacks the file payload-store.*payloads create"):
            offload.move_out(job())
        assert not folder.exists() or not list(folder.iterdir())
    assert (offload.make_store(), offload.make_store()) == (True, False)
    offload.move_out(job())
    # It is no longer mounted.
    shutil.rmtree(folder)
    with pytest.raises(PayloadStoreError, match="payloads create"):
        offload.move_out(job())


def test_folder_that_others_may_write_is_no_store(tmp_path):
    store = FolderStore(tmp_path / "payloads")
    store.put("blobs/ab/one", b"1")
    (tmp_path / "payloads").chmod(0o777)
    for use in (
        lambda: store.get("blobs/ab/one"),
        lambda: store.put("blobs/ab/one", b"2"),
        lambda: store.delete("blobs/ab/one"),
    ):
        with pytest.raises(UnsafeFileError, match="other users may write into the folder"):
            use()
    with pytest.raises(UnsafeFileError):
        list(store.list("blobs"))
    (tmp_path / "payloads").chmod(0o700)
    (tmp_path / "payloads" / "blobs" / "ab" / "one").unlink()
    os.mkfifo(tmp_path / "payloads" / "blobs" / "ab" / "one")
    with pytest.raises(UnsafeFileError, match="no regular file"):
        store.get("blobs/ab/one")
