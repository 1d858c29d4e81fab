"""Run what ``deploy`` writes: pods as Kubernetes does, units as systemd does; let independent programs read it.

A pod is its container's command as process 1 of its own: as a user without rights, on a read-only root, with the variables, the
config folder and the probes of its manifest.
"""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from framework.wire import keys
from tests.cluster.test_runner_group import Systemd
from tests.harness import ROOT, enqueue, until
from tests.process.conftest import proofs, release
from tests.servers.guarded import as_role, with_all_rights

__all__ = ["proofs", "release"]

pytestmark = pytest.mark.campaign

TOOLS = Path(__file__).with_name("deploy_tools.lock")
PROGRAMS = f"{ROOT}/.venv/bin:/usr/bin:/bin"
SOCKETS = "/srv/redis"
AS_USER = ["setpriv", "--reuid", "10001", "--regid", "10001", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]

CONTAINER = f"""
set -e
mount -t tmpfs tmpfs /srv
mkdir -p /srv/app /srv/python {SOCKETS}
cp -r "$APP"/. /srv/app
chmod -R a+rX /srv/app
mount --bind "$SOCKETS" {SOCKETS}
case "$PYTHON" in "$HOME"/*)
    mount --bind "$PYTHON" /srv/python
    mount -t tmpfs -o mode=755 tmpfs "$HOME"
    mkdir -p "$PYTHON"
    mount --bind /srv/python "$PYTHON"
    mount -o remount,ro "$HOME"
esac
mount -o remount,ro /srv
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -o remount,ro,bind /
unset APP SOCKETS PYTHON
cd /srv/app
HOME=/tmp exec {shlex.join(AS_USER)} "$@"
"""
"""The container of a pod: the folder of the application and /tmp are new, all else is read-only.

An interpreter in root's home is made readable there, as no other user may look into that folder.
"""


def in_container(app, sockets, command, **env):
    """Return the arguments of Popen for a command in a container."""
    start = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CONTAINER, "sh"]
    given = {"APP": str(app), "SOCKETS": str(sockets), "PYTHON": sys.base_prefix, "HOME": str(Path.home())}
    return {"args": [*start, *command], "env": {"PATH": PROGRAMS, **given, **env}, "stdin": subprocess.DEVNULL}


READ_SCHEMAS = """
import json, sys
import kubernetes_validate, yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from helm_python.chart import Chart

def documents(texts):
    return [one for text in texts for one in yaml.safe_load_all(text) if one is not None]

def check(found):
    for one in found:
        if one["apiVersion"].startswith("keda.sh/"):
            # What the model does not know is not in its copy.
            copy = ScaledObject.model_validate(one).model_dump(mode="json", by_alias=True, exclude_unset=True)
            assert copy == one, (copy, one)
        else:
            for version in ("1.28", "1.32", "1.37"):
                kubernetes_validate.validate(one, version, strict=True)
    return found

given = json.load(sys.stdin)
chart = Chart.load(given["chart"])
rendered = [documents(chart.render(values, name="x", namespace="jobs").values()) for values in given["values"]]
print(json.dumps([check(documents(given["plain"])), *map(check, rendered)]))
"""


@pytest.fixture(scope="session")
def tools():
    """Return the folder of the readers, installed from their lock at the first use."""
    digest = hashlib.sha256(TOOLS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / "var" / f"deploy-tools-{digest}"
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "--target", str(part), "-r", str(TOOLS)], check=True, timeout=300)
        part.rename(folder)
    if not (folder / "helm_python").exists():
        pytest.skip("Helm's library has no wheel for this machine")
    return folder


@pytest.fixture
def installation(site):
    """Return a function that writes files of ``deploy`` for the site, and returns their folder."""
    site.write("application.yml", {"workers_module": "jobs", "timeout": 20})
    assert site.run("-m", "framework", "generate-queues").returncode == 0

    def write(kind, *options):
        folder = site.folder / kind
        done = site.run("-m", "framework", "deploy", kind, str(folder), *options)
        assert done.returncode == 0, done.stderr
        return folder

    return write


@pytest.mark.parametrize("groups", [{}, {"fast": ["default"], "slow": ["mailers"]}])
def test_manifests_and_chart_are_valid_and_equal(tools, installation, site, groups):
    settings = {"workers_module": "jobs", "fleet": {"queue_groups": groups}, "tag": "{{ .Values.image }}"}
    site.write("application.yml", settings)
    plain = installation("kubernetes", "--image", "shop:1", "--namespace", "jobs")
    chart = installation("chart", "--image", "shop:1")
    texts = [path.read_text() for path in plain.glob("*.yaml") if path.name != "kustomization.yaml"]
    fixed = {"autoscaling": False, "workers": {name: {"minReplicas": 3} for name in workers_of(chart)}}
    given = {"chart": str(chart), "plain": texts, "values": [{}, fixed]}
    done = subprocess.run(
        [sys.executable, "-c", READ_SCHEMAS],
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    manifests, rendered, without = ({key(one): one for one in found} for found in json.loads(done.stdout))
    secrets = {name for name in manifests if name[0] == "Secret"}
    assert len(secrets) == 2
    # The chart has no Secret: it would replace the real one.
    assert {name: bare(one) for name, one in manifests.items() if name not in secrets} == {
        name: bare(one) for name, one in rendered.items()
    }
    assert {name for name in rendered if name not in without} == {key for key in rendered if key[0] == "ScaledObject"}
    numbers = {name: one["spec"]["replicas"] for name, one in without.items() if name[0] == "Deployment"}
    assert numbers == {name: 1 if name[1].endswith("-exporter") else 3 for name in numbers}


def workers_of(chart):
    return yaml.safe_load((chart / "values.yaml").read_text())["workers"]


def key(manifest):
    return manifest["kind"], manifest["metadata"]["name"]


def bare(value):
    """Return a manifest without what is null, which Kubernetes takes for absent."""
    if isinstance(value, dict):
        return {name: bare(one) for name, one in value.items() if one is not None}
    return [bare(one) for one in value] if isinstance(value, list) else value


# --- pods -----------------------------------------------------------------------------------------------------------


class Pod:
    """One pod of a Deployment, run as the kubelet runs it."""

    def __init__(self, deployment, folder, secrets, app, sockets, image):
        template = deployment["spec"]["template"]["spec"]
        (self.container,) = template["containers"]
        self.grace_s = template["terminationGracePeriodSeconds"]
        values = {one["name"]: one["value"] for one in self.container["env"]}
        for source in self.container["envFrom"]:
            values |= secrets[source["secretRef"]["name"]]
        shutil.copytree(app, image, ignore=lambda *_: ["config"])
        (mount,) = [one for one in self.container["volumeMounts"] if one["name"] == "config"]
        assert mount["mountPath"] == "/srv/app/config"
        (image / "config").mkdir()
        config = yaml.safe_load((folder / "config.yaml").read_text())
        for name, text in config["data"].items():
            (image / "config" / name).write_text(text)
        self.log = image.with_name("pod.log")
        with self.log.open("wb") as log:
            started = in_container(image, sockets, self.container["command"], **values)
            self._popen = subprocess.Popen(**started, stdout=log, stderr=log)

    @property
    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def ask(self, path, port):
        """Return the status and the body of an answer; ``None`` while nothing listens."""
        assert self._popen.poll() is None, self.log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=4) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return None

    def probe(self, kind):
        asked = self.container[f"{kind}Probe"]["httpGet"]
        answer = self.ask(asked["path"], asked["port"])
        return answer is not None and answer[0] == 200

    def ready(self):
        until(lambda: self.probe("readiness"), "the pod is ready")
        assert self.probe("liveness")
        return self

    def run_pre_stop(self):
        command = self.container["lifecycle"]["preStop"]["exec"]["command"]
        inside = ["nsenter", "--target", str(self.first_process), "--mount", "--pid", "--", *AS_USER]
        subprocess.run([*inside, *command], check=True, timeout=self.grace_s)

    @property
    def first_process(self):
        """The pid of the container's process 1 outside of it."""
        pid = self._popen.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def terminate(self):
        os.kill(self.first_process, signal.SIGTERM)

    def ended_within_grace(self):
        """Return the exit status; a pod that runs longer than its grace period would be killed."""
        return self._popen.wait(self.grace_s)

    def close(self):
        if self._popen.poll() is None:
            with suppress(OSError, IndexError):
                os.kill(self.first_process, signal.SIGKILL)
            self._popen.kill()
        self._popen.wait(30)


@pytest.fixture
def start_pod(installation, site, redis_url, tmp_path):
    """Return a function that writes the manifests, and starts one pod of the Deployment of this name."""
    sockets = Path(urlsplit(redis_url).path).parent
    tried = in_container(tmp_path, sockets, ["python", "-c", "import framework, redis"])
    done = subprocess.run(**tried, capture_output=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(f"no containers here: {done.stderr.decode()[-300:]}")
    for path, mode in ((sockets, 0o755), (Path(urlsplit(redis_url).path), 0o777)):
        path.chmod(mode)
    inside = f"unix://{SOCKETS}/{Path(urlsplit(redis_url).path).name}"
    variables = {"FRAMEWORK_SHARDS__MAIN__URL": as_role(inside, "worker"), "PROOF_URL": with_all_rights(inside)}
    of_exporter = {**variables, "FRAMEWORK_SHARDS__MAIN__URL": as_role(inside, "read-only")}
    secrets = {"application-worker": variables, "application-worker-exporter": of_exporter}
    started = []

    def start(name, file):
        folder = installation("kubernetes", "--image", "shop:1")
        deployments = yaml.safe_load_all((folder / f"{file}.yaml").read_text())
        (deployment,) = [one for one in deployments if key(one) == ("Deployment", name)]
        started.append(Pod(deployment, folder, secrets, site.folder, sockets, tmp_path / name))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_stopped_pod_ends_its_jobs_and_takes_no_more(start_pod, redis, proofs, release):
    pod = start_pod("application-worker-main-all", "workers").ready()
    enqueue(redis, "LongWorker", args=["a"], jid="a" * 24)
    proofs("begun:a")
    pod.run_pre_stop()
    port = pod.container["readinessProbe"]["httpGet"]["port"]
    until(lambda: json.loads(pod.ask("/readiness", port)[1])["children"][0]["state"] == "quiet", "the child is quiet")
    later = enqueue(redis, "NoopWorker", jid="b" * 24)
    pod.terminate()
    until(lambda: [one for one in pod.lines if one.get("event_name") == "cluster.stopping"], "the pod stops")
    assert not redis.exists("proof:ended:a")
    release("a")
    assert pod.ended_within_grace() == 0
    assert (len(proofs("begun:a")), len(proofs("ended:a"))) == (1, 1)
    assert redis.lrange(keys.queue("default"), 0, -1) == [later]
    assert nothing_in_flight(redis)


def test_stopped_pod_gives_longer_jobs_back_in_time(start_pod, site, redis, proofs, installation):
    site.write("application.yml", {"workers_module": "jobs", "timeout": 2})
    pod = start_pod("application-worker-main-all", "workers").ready()
    for number in range(3):
        enqueue(redis, "LongWorker", args=[f"x{number}"], jid=f"{number}" * 24)
    for number in range(3):
        proofs(f"begun:x{number}")
    pod.run_pre_stop()
    pod.terminate()
    assert pod.ended_within_grace() == 0
    back = [json.loads(one)["jid"][0] for one in redis.lrange(keys.queue("default"), 0, -1)]
    assert sorted(back) == ["0", "1", "2"]
    assert nothing_in_flight(redis)


def nothing_in_flight(redis):
    return [name for name in redis.scan_iter(match=keys.working("*")) if redis.llen(name)] == []


def test_exporter_pod_answers_its_probes_and_the_autoscaler(start_pod, redis, site):
    for number in range(100):
        enqueue(redis, "NoopWorker", jid=f"{number:024}")
    pod = start_pod("application-worker-exporter", "exporter").ready()
    scaled = yaml.safe_load((site.folder / "kubernetes" / "autoscaling.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    url = urlsplit(trigger["metadata"]["url"])

    def slots():
        status, body = pod.ask(f"{url.path}?{url.query}", url.port)
        assert status == 200, body
        return json.loads(body)[trigger["metadata"]["valueLocation"]]

    # 100 jobs of a second each within half of the 10 s of urgent jobs, of which the queue has some.
    assert slots() == 20
    pod.terminate()
    assert pod.ended_within_grace() == 0


# --- systemd --------------------------------------------------------------------------------------------------------


def test_unit_notifies_systemd_and_ends_its_job(installation, site, redis, proofs, release, short_path):
    folder = installation("systemd", "--name", "shop", "--folder", str(short_path))
    (short_path / "venv").symlink_to(ROOT / ".venv")
    (short_path / "current").symlink_to(site.folder)
    text = (folder / "shop-main-all.service").read_text()
    lines = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
    unit = dict(lines)
    env = dict(shlex.split(value)[0].split("=", 1) for name, value in lines if name == "Environment")
    service = Systemd(short_path / "notify")
    given = {**site.environment("worker"), **env, "NOTIFY_SOCKET": str(service.path), "WATCHDOG_USEC": "30000000"}
    log = (short_path / "unit.log").open("wb")
    popen = subprocess.Popen(
        shlex.split(unit["ExecStart"]), cwd=unit["WorkingDirectory"], env=given, stdout=log, stderr=log
    )
    try:
        until(lambda: service.notifications() == ["READY=1"], "the unit is ready")
        enqueue(redis, "LongWorker", args=["a"], jid="a" * 24)
        proofs("begun:a")
        popen.terminate()
        until(lambda: service.notifications() == ["READY=1", "STOPPING=1"], "the unit stops")
        release("a")
        assert popen.wait(int(unit["TimeoutStopSec"])) == 0
    finally:
        popen.kill()
        log.close()
        service.close()
    assert (len(proofs("begun:a")), len(proofs("ended:a"))) == (1, 1)
    assert nothing_in_flight(redis)
