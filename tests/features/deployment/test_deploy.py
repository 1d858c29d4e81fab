"""Test what ``deploy`` writes for an installation: sets of processes, manifests, a chart and units."""

import json
import re
import shlex
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import yaml

from tests.conftest import short_folder
from tests.fork_server import FORK_SERVER
from tests.harness import ROOT

JOBS = """
from datetime import timedelta

from framework import ApplicationWorker


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"


class PayWorker(Base):
    urgency = "high"

    def perform(self) -> None: ...


class MailWorker(Base):
    queue_namespace = "mail"

    def perform(self) -> None: ...


class ExportWorker(Base):
    urgency = "throttled"
    timeout = timedelta(minutes=10, milliseconds=1)

    def perform(self) -> None: ...
"""
FILES = {
    "jobs.py": JOBS,
    "config/redis.yml": "shards: {main: {url: embedded}, exports_a: {url: embedded}}",
    "config/routing.yml": 'routing_rules: [["urgency=high", urgent], ["urgency=throttled", exports, exports_a], ["*", null]]',
    "config/application.yml": "# postgresql://app:secret@db/shop\nworkers_module: jobs\nfleet: {queue_groups: {web: [urgent, mail]}}",
}
SETS = ["main-web", "exports-a-rest"]


class Installation:
    """A folder with an application, in which commands run."""

    def __init__(self, folder):
        self.folder = folder
        for name, text in FILES.items():
            self.write(name, text)
        self.run("generate-queues")

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run(self, *words, status=0):
        done = FORK_SERVER.run(("-m", "framework", *words), self.folder, {"PATH": "/usr/bin:/bin"}, timeout=60)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def documents(self, name):
        return list(yaml.safe_load_all((self.folder / name).read_text()))


@pytest.fixture
def made():
    with short_folder() as folder:
        yield Installation(folder)


@pytest.fixture(scope="module")
def written():
    """An installation for which everything was written."""
    with short_folder() as folder:
        made = Installation(folder)
        made.run("deploy", "kubernetes", "k8s", "--image", "shop:1", "--namespace", "jobs", "--name", "shop")
        made.run("deploy", "chart", "chart", "--image", "shop:1", "--name", "shop")
        made.run("deploy", "systemd", "units", "--name", "shop", "--folder", str(folder))
        made.run("deploy", "image", "image")
        yield made


def of_kind(written, file, kind):
    return {one["metadata"]["name"]: one for one in written.documents(f"k8s/{file}.yaml") if one["kind"] == kind}


def pods(written):
    """Return the specs of the pods by the name of their Deployment."""
    found = of_kind(written, "workers", "Deployment") | of_kind(written, "exporter", "Deployment")
    return {name: one["spec"]["template"]["spec"] for name, one in found.items()}


def command(written, name):
    return pods(written)[name]["containers"][0]["command"]


def test_deployments_are_one_per_group_and_shard(written):
    assert list(of_kind(written, "workers", "Deployment")) == [f"shop-{name}" for name in SETS]
    assert list(of_kind(written, "workers", "PodDisruptionBudget")) == [f"shop-{name}" for name in SETS]
    assert command(written, "shop-main-web")[:6] == [
        "application-worker", "cluster", "--shard", "main", "--max-concurrency", "10",
    ]  # fmt: skip


def test_command_of_a_pod_serves_the_queues_of_its_group(written):
    # The weights of queues.yml: `urgent` is asked first three times as often.
    for name, shard, shown in (
        ("main-web", "main", ["-q urgent,3", "-q mail,1", "-q mail:mail,1"]),
        ("exports-a-rest", "exports_a", ["-q exports "]),
    ):
        lines = written.run(*command(written, f"shop-{name}")[1:], "--dryrun").stdout.splitlines()
        assert len(lines) == 2
        assert f"--shard {shard} " in lines[1]
        assert all(one in f"{lines[1]} " for one in shown), lines[1]


def test_grace_period_is_the_longest_timeout_and_a_margin(written):
    found = {
        name: (one["terminationGracePeriodSeconds"], command(written, name)) for name, one in pods(written).items()
    }
    for name, timeout in (("shop-main-web", 25), ("shop-exports-a-rest", 601)):
        grace, words = found[name]
        assert grace == timeout + 15
        assert words[words.index("--timeout") + 1] == str(timeout)


def test_pods_run_without_rights_and_on_a_read_only_root(written):
    for pod in pods(written).values():
        (container,) = pod["containers"]
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not pod["automountServiceAccountToken"]


def test_autoscaler_asks_for_the_group_and_shard_of_each_set(written):
    found = of_kind(written, "autoscaling", "ScaledObject")
    targets = {one["spec"]["scaleTargetRef"]["name"]: one["spec"] for one in found.values()}
    urls = {name: one["triggers"][0]["metadata"]["url"] for name, one in targets.items()}
    # KEDA runs in another namespace.
    assert urls == {
        "shop-main-web": "http://shop-exporter.jobs:9168/slots_needed?shard=main&group=web",
        "shop-exports-a-rest": "http://shop-exporter.jobs:9168/slots_needed?shard=exports_a&group=rest",
    }
    # Two for urgent jobs.
    assert [one["minReplicaCount"] for one in targets.values()] == [2, 1]
    (exporter,) = pods(written)["shop-exporter"]["containers"]
    groups = next(one["value"] for one in exporter["env"] if one["name"] == "FRAMEWORK_FLEET__QUEUE_GROUPS")
    assert json.loads(groups) == {"web": ["urgent", "mail", "mail:mail"], "rest": ["exports"]}


def test_groups_of_the_exporter_are_a_valid_setting(written):
    (exporter,) = pods(written)["shop-exporter"]["containers"]
    env = {one["name"]: one["value"] for one in exporter["env"] if one["name"].startswith("FRAMEWORK_FLEET")}
    code = "from framework.all_settings import load; print(load().fleet.queue_groups['web'])"
    done = FORK_SERVER.run(("-c", code), written.folder, {"PATH": "/usr/bin:/bin", **env}, timeout=60)
    assert done.stdout == "('urgent', 'mail', 'mail:mail')\n"


def test_without_autoscaling_the_number_of_pods_is_fixed(made):
    made.run("deploy", "kubernetes", "k8s", "--image", "shop:1", "--no-autoscaling")
    replicas = [one["spec"]["replicas"] for one in made.documents("k8s/workers.yaml") if one["kind"] == "Deployment"]
    assert replicas == [2, 1]
    (kustomization,) = made.documents("k8s/kustomization.yaml")
    assert kustomization["resources"] == ["config.yaml", "exporter.yaml", "workers.yaml"]


def test_config_map_has_the_config_folder_without_comments(written):
    (config,) = written.documents("k8s/config.yaml")
    assert set(config["data"]) == {"application.yml", "queues.yml", "redis.yml", "routing.yml"}
    assert "secret" not in config["data"]["application.yml"]
    for name, text in config["data"].items():
        assert yaml.safe_load(text) == yaml.safe_load((written.folder / "config" / name).read_text())


def test_settings_of_shards_and_stores_reach_the_pods(made):
    """The files of a fleet: a role, a budget, clusters, and a bucket of large arguments."""
    nodes = "10.0.0.7:6379,10.0.0.8:6379"
    shards = {
        "main": {"url": f"redis+cluster://{nodes}", "memory_budget": "70%"},
        "exports_a": {"url": f"rediss+cluster://{nodes}?tag=exports"},
    }
    made.write("config/redis.yml", json.dumps({"shards": shards, "roles": {"meta": "main"}}))
    offload = {"payload_offload": {"url": "s3://bucket/jobs?region=eu"}, "workers_module": "jobs"}
    made.write("config/application.yml", json.dumps(offload))
    made.run("deploy", "kubernetes", "k8s", "--image", "shop:1")
    made.run("deploy", "systemd", "units", "--name", "shop")
    (config,) = made.documents("k8s/config.yaml")
    assert yaml.safe_load(config["data"]["redis.yml"]) == {"shards": shards, "roles": {"meta": "main"}}
    assert yaml.safe_load(config["data"]["application.yml"]) == offload
    examples = {
        "FRAMEWORK_SHARDS__MAIN__URL": f"redis+cluster://USER:PASSWORD@{nodes}",
        "FRAMEWORK_SHARDS__EXPORTS_A__URL": f"rediss+cluster://USER:PASSWORD@{nodes}?tag=exports",
    }
    assert [one["stringData"] for one in made.documents("k8s/secret.example.yaml")] == [examples] * 2
    environment = (made.folder / "units" / "environment.example").read_text()
    assert dict(line.split("=", 1) for line in environment.splitlines() if not line.startswith("#")) == examples


def test_processes_write_to_a_folder_of_their_own(written):
    for name in SETS:
        env = {one["name"]: one["value"] for one in pods(written)[f"shop-{name}"]["containers"][0]["env"]}
        lines = unit(written, name)
        assert env["FRAMEWORK_VAR_DIR"] == "/tmp/var"
        assert ["Environment", "FRAMEWORK_VAR_DIR=/var/lib/shop"] in lines
        assert ["StateDirectory", "shop"] in lines


def test_changed_config_replaces_the_pods(made):
    def digest():
        made.run("deploy", "kubernetes", "k8s", "--image", "shop:1")
        return {one["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
                for one in made.documents("k8s/workers.yaml") if one["kind"] == "Deployment"}  # fmt: skip

    before = digest()
    assert digest() == before
    made.write("config/application.yml", FILES["config/application.yml"] + "\ntimeout: 30")
    assert len(before | digest()) == 2


@pytest.mark.parametrize("url", ["redis://app:hidden-word@db/0", "redis://:pw@db/0"])
def test_secret_in_a_config_file_is_refused(made, url):
    made.write("config/redis.yml", json.dumps({"shards": {"main": {"url": url}, "exports_a": {"url": "embedded"}}}))
    done = made.run("deploy", "chart", "chart", "--image", "shop:1", status=78)
    assert "config/redis.yml: shards.main.url: is a secret" in done.stderr
    assert "hidden-word" not in done.stderr
    assert not (made.folder / "chart").exists()


def test_file_of_another_origin_is_not_overwritten(made):
    made.write("image/Dockerfile", "FROM scratch\n")
    assert "was not written by this command" in made.run("deploy", "image", "image", status=1).stderr
    assert (made.folder / "image" / "Dockerfile").read_text() == "FROM scratch\n"
    (made.folder / "image" / "Dockerfile").unlink()
    assert made.run("deploy", "image", "image").stdout.count("wrote") == 2
    assert made.run("deploy", "image", "image").stdout.count("unchanged") == 2


def test_groups_of_one_name_are_refused(made):
    groups = {"a_b": ["urgent"], "a-b": ["mail"]}
    made.write("config/application.yml", json.dumps({"workers_module": "jobs", "fleet": {"queue_groups": groups}}))
    done = made.run("deploy", "systemd", "units", status=78)
    assert "2 groups and shards would be called main-a-b: rename one" in done.stderr


def test_group_on_two_shards_serves_its_queues_where_they_are(made):
    groups = {"both": ["urgent", "exports"]}
    made.write("config/application.yml", json.dumps({"workers_module": "jobs", "fleet": {"queue_groups": groups}}))
    made.run("deploy", "systemd", "units")
    served = {}
    for path in (made.folder / "units").glob("*-both.service"):
        (line,) = [line for line in path.read_text().splitlines() if line.startswith("ExecStart=")]
        words = line.split()
        served[words[words.index("--shard") + 1]] = words[-1]
    assert served == {"main": "urgent", "exports_a": "exports"}


def test_chart_refers_to_each_value_and_to_no_other(written):
    (values,) = written.documents("chart/values.yaml")
    referred = set()
    for path in (written.folder / "chart" / "templates").iterdir():
        text = path.read_text()
        referred |= {tuple(shlex.split(one)) for one in re.findall(r"index \.Values ([^|}]+?) (?:\||\}\})", text)}
        referred |= {(one,) for one in re.findall(r"\.Values\.(\w+)", text)}
    assert referred == set(leaves(values))


def leaves(values, path=()):
    """Yield the paths of the values; the resources of a container are one value."""
    for name, value in values.items():
        if isinstance(value, dict) and name != "resources":
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def unit(written, name):
    """Return the lines of a unit's section Service as pairs."""
    text = (written.folder / "units" / f"shop-{name}.service").read_text()
    return [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]


def test_unit_runs_the_command_of_its_deployment(written):
    for name in SETS:
        lines = SimpleNamespace(**dict(unit(written, name)))
        words = command(written, f"shop-{name}")
        program, *rest = shlex.split(lines.ExecStart)
        assert program == f"{written.folder}/venv/bin/application-worker"
        assert rest == words[1:-4]  # the health port is Kubernetes'
        assert int(lines.TimeoutStopSec) == pods(written)[f"shop-{name}"]["terminationGracePeriodSeconds"]
        assert (lines.Type, lines.KillMode) == ("notify", "mixed")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze checks the units")
def test_units_are_valid_for_systemd(written):
    (written.folder / "venv").symlink_to(ROOT / ".venv")
    names = [str(path) for path in (written.folder / "units").glob("*.service")]
    assert len(names) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, check=False, timeout=60
    )
    ours = [line for line in done.stderr.splitlines() if "shop-" in line]
    assert (ours, done.returncode) == ([], 0)


def test_dockerfile_drops_rights_and_installs_before_the_sources(made):
    made.write("requirements.txt", "application-worker\n")
    made.run("deploy", "image", "image")
    lines = (made.folder / "image" / "Dockerfile").read_text().splitlines()
    order = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert order == ["FROM", "WORKDIR", "COPY", "RUN", "COPY", "RUN", "ENV", "USER", "CMD"]
    assert "USER 10001:10001" in lines
    assert "RUN pip install --no-cache-dir -r requirements.txt" in lines
