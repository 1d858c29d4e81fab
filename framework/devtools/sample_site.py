"""Run the sample platform for ``application-worker dashboard --sample``: a store for each shard, its configuration, its data."""

import os
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from redis.exceptions import RedisError

from framework.devtools.sample_platform import (
    DEAD_SHARD,
    DEAD_URL,
    SHARDS,
    WRONG_QUEUE,
    WRONG_RULE,
    SamplePlatform,
    sample_classes,
)
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import EmbeddedServer
from framework.supervised_threads import SupervisedThread

_BEAT_S = 5.0
_MODULE = "sample_jobs"
_FOREIGN = ("REDIS_URL", "FRAMEWORK_")
"""Variables of the user's shell for another installation."""


@contextmanager
def sample_site(seed: int = 1) -> Generator[None]:
    """Let this process use the sample platform of a seed, within the block. Its stores end with the block, or with the process.

    Call it before anything reads the configuration.

    Raises:
        ConfigurationError: a store does not start.
    """
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sample-")))
        stores = {name: opened.enter_context(EmbeddedServer(folder / name, keeps_data=False)) for name in SHARDS}
        for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
            del os.environ[name]
        _write_configuration(folder / "config", {name: store.url for name, store in stores.items()})
        os.environ |= {"FRAMEWORK_CONFIG_DIR": str(folder / "config"), "FRAMEWORK_VAR_DIR": str(folder)}
        # Its classes are those of a module that only this process can import.
        sys.path.insert(0, str(folder))
        opened.callback(sys.path.remove, str(folder))
        clients = {name: open_client(Endpoint(store.url), name="sample") for name, store in stores.items()}
        platform = SamplePlatform(clients, seed)
        platform.write()
        ended = threading.Event()
        SupervisedThread("sample-beats", lambda: _beat(platform, ended)).start()
        try:
            yield
        finally:
            ended.set()


def _beat(platform: SamplePlatform, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_S):
        try:
            platform.beat()
        # The stores end while the process ends.
        except (RedisError, OSError):
            return


def _write_configuration(folder: Path, urls: dict[str, str]) -> None:
    classes = sample_classes()
    shards = {name: {"url": url} for name, url in (*urls.items(), (DEAD_SHARD, DEAD_URL))}
    rules = [
        [f"worker_name={WRONG_RULE}", WRONG_QUEUE],
        *(
            [f"feature_category={area}", None, shard]
            for area, shard in sorted({(one.area, one.shard) for one in classes})
        ),
        ["*", None],
    ]
    files = {
        "redis": {"shards": shards},
        "routing": {"routing_rules": rules},
        "application": {"workers_module": _MODULE},
        "feature_categories": {"feature_categories": {one.area: {"owner": f"team-{one.area}"} for one in classes}},
    }
    folder.mkdir()
    text = f"from framework.devtools.sample_workers import declare_workers\n\ndeclare_workers({_MODULE!r})\n"
    (folder.parent / f"{_MODULE}.py").write_text(text, encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
