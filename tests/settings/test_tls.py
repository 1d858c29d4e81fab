"""Check the TLS files with the configuration: an error names the key and the file."""

import shutil

import pytest

from framework.all_settings import load
from framework.errors import ConfigurationError
from tests.chaos.test_access import Authority

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("tls"))
    made.certificate("server.pem", 2)
    made._run("pkey", "-in", "server.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key")
    (made.folder / "text").write_text("no certificate")
    return made


def problem(tmp_path, monkeypatch, folder, **tls):
    """Return the error of a shard with these files."""
    lines = "".join(f"      {name}: {folder / value}\n" for name, value in tls.items())
    (tmp_path / "redis.yml").write_text(f"shards:\n  main:\n    url: rediss://127.0.0.1:6379\n    tls:\n{lines}")
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        load()
    return str(caught.value)


@pytest.mark.parametrize(
    ("tls", "key", "words"),
    [
        ({"ca_file": "text"}, "tls.ca_file", "text holds no certificates in PEM form"),
        ({"cert_file": "text", "key_file": "server.key"}, "tls", "cert_file {}/text holds no certificates"),
        ({"cert_file": "server.pem", "key_file": "text"}, "tls", "key_file {}/text holds no private key"),
        (
            {"cert_file": "server.pem", "key_file": "ca.key"},
            "tls",
            "key_file {}/ca.key does not belong to the certificate",
        ),
        ({"cert_file": "server.pem"}, "tls", "key_file is missing, and cert_file {}/server.pem holds no private key"),
        ({"cert_file": "server.pem", "key_file": "locked.key"}, "tls", "key_file {}/locked.key is encrypted"),
    ],
    ids=["ca", "certificate", "key", "pair", "no key", "password"],
)
def test_tls_file_that_cannot_serve_is_named(tmp_path, monkeypatch, authority, tls, key, words):
    message = problem(tmp_path, monkeypatch, authority.folder, **tls)
    assert f"shards.main.{key}:" in message
    assert words.format(authority.folder) in message


def test_tls_files_that_fit_are_accepted(tmp_path, monkeypatch, authority):
    folder = authority.folder
    tls = f"{{ca_file: {folder}/ca.pem, cert_file: {folder}/server.pem, key_file: {folder}/server.key}}"
    (tmp_path / "redis.yml").write_text(f"shards: {{main: {{url: 'rediss://127.0.0.1:6379', tls: {tls}}}}}")
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    assert load().shards["main"].tls is not None
