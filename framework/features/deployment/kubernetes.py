"""Describe an installation to Kubernetes: as manifests, and as a Helm chart.

The chart is the manifests, with a reference in place of each value that differs between environments. So there is one source, and no
template that only Helm could read.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from framework.features.deployment.worker_sets import STOP_MARGIN_S, DeploymentPlan, WorkerSet
from framework.settings.urls import EMBEDDED, parse_redis_url
from framework.terminal.generated_files import yaml_text
from framework.types import Urgency
from framework.version import VERSION

Manifest = dict[str, Any]

HEALTH_PORT, EXPORTER_PORT = 9394, 9168
FOLDER = "/srv/app"
"""The folder of the application in its image; config/ is below it."""
USER_ID = 10001
"""The user of the processes: one without a name and without rights."""
MOST_BYTES = 1_000_000
"""Kubernetes refuses a ConfigMap of more than 1 MiB."""

_LEAST_REPLICAS: Mapping[Urgency, int] = {
    # A new process starts in seconds, and the target of urgent jobs is 10 s. A second pod serves while a node goes away.
    "high": 2,
    # Never 0: due jobs enter their queues only where a process of the shard runs.
    "low": 1,
    "throttled": 1,
}
_POLL_S: Mapping[Urgency, int] = {"high": 5, "low": 15, "throttled": 30}
_MOST_REPLICAS = 20
_RESOURCES = {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
_EXPORTER_RESOURCES = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}


class Names(NamedTuple):
    """The names of an installation in a cluster."""

    name: str
    """The first part of the name of each object."""
    image: str
    namespace: str


def default_values(plan: DeploymentPlan, names: Names) -> Manifest:
    """Return the values.yaml of the chart."""
    return {
        "image": names.image,
        # The Secrets with the URLs of Redis, of which the exporter's needs the rights of the role read-only.
        "secret": names.name,
        "exporterSecret": f"{names.name}-exporter",
        "autoscaling": True,
        "workers": {
            one.name: {
                "minReplicas": _LEAST_REPLICAS[one.urgency],
                "maxReplicas": _MOST_REPLICAS,
                "resources": _RESOURCES,
            }
            for one in plan.sets
        },
        "exporter": {"resources": _EXPORTER_RESOURCES},
    }


class _Values:
    """Give the values that differ between environments: here themselves, for manifests."""

    def __init__(self, values: Manifest, namespace: str) -> None:
        self._values = values
        self.namespace = namespace

    def get(self, *path: str) -> Any:
        found: Any = self._values
        for part in path:
            found = found[part]
        return found

    def replicas(self, name: str) -> Mapping[str, Any]:
        return {} if self._values["autoscaling"] else {"replicas": self.get("workers", name, "minReplicas")}


class _References(_Values):
    """Give references to the values, in the language of Helm, for a chart."""

    def __init__(self) -> None:
        super().__init__({}, "{{ .Release.Namespace }}")

    def get(self, *path: str) -> Any:
        return f"{{{{ {_index(path)} | toJson }}}}"

    def replicas(self, name: str) -> Mapping[str, Any]:
        fixed = _index(("workers", name, "minReplicas"))
        # An autoscaler sets the number: a number in the manifest would reset it at each change.
        return {"replicas": f"{{{{ if .Values.autoscaling }}}}null{{{{ else }}}}{{{{ {fixed} }}}}{{{{ end }}}}"}


def _index(path: Sequence[str]) -> str:
    return f"index .Values {' '.join(json.dumps(part) for part in path)}"


# --- files ----------------------------------------------------------------------------------------------------------


def manifest_files(
    plan: DeploymentPlan, names: Names, config: Mapping[str, str], *, autoscaling: bool = True
) -> dict[str, str]:
    """Return the files for ``kubectl apply -k``, by name. ``config``: the texts of the config folder."""
    values = _Values({**default_values(plan, names), "autoscaling": autoscaling}, names.namespace)
    files = {name: _documents(one) for name, one in _manifests(plan, names, values, config).items()}
    if not autoscaling:
        del files["autoscaling.yaml"]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": names.namespace,
        "resources": sorted(files),
    }
    return {**files, "kustomization.yaml": yaml_text(kustomization), "secret.example.yaml": _secrets(plan, names)}


def chart_files(plan: DeploymentPlan, names: Names, config: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a Helm chart, by name."""
    # Helm would read braces in a file of the config folder as its own.
    escaped = {name: text.replace("{{", '{{ "{{" }}') for name, text in config.items()}
    templates = _manifests(plan, names, _References(), escaped, digest=_digest(config))
    files = {f"templates/{name}": _without_quotes(_documents(one)) for name, one in templates.items()}
    # It has no references, and the quotes in it are those of the files.
    files["templates/config.yaml"] = _documents(templates["config.yaml"])
    scaled = files["templates/autoscaling.yaml"]
    files["templates/autoscaling.yaml"] = f"{{{{- if .Values.autoscaling }}}}\n{scaled}{{{{- end }}}}\n"
    chart = {
        "apiVersion": "v2",
        "name": names.name,
        "description": "The worker processes of an application.",
        "type": "application",
        "version": VERSION,
    }
    values = default_values(plan, names)
    return {"Chart.yaml": yaml_text(chart), "values.yaml": yaml_text(values), **files} | {
        "secret.example.yaml": _secrets(plan, names)
    }


def _documents(manifests: Iterable[Manifest]) -> str:
    return "---\n".join(map(yaml_text, manifests))


def _without_quotes(text: str) -> str:
    """Return a template whose references stand alone: what they become is JSON, with the quotes that it needs."""
    return re.sub(r"'(\{\{[^'\n]*\}\})'", r"\1", text)


def _digest(config: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


# --- manifests ------------------------------------------------------------------------------------------------------


def _manifests(
    plan: DeploymentPlan, names: Names, values: _Values, config: Mapping[str, str], digest: str | None = None
) -> dict[str, list[Manifest]]:
    # A changed file of the config folder must replace the pods: a process reads them at its start only.
    version = {"checksum/config": digest or _digest(config)}
    return {
        "config.yaml": [
            _object("v1", "ConfigMap", f"{names.name}-config", _labels(names, "config"), data=dict(config))
        ],
        "workers.yaml": [one for each in plan.sets for one in _workers(each, names, values, version)],
        "exporter.yaml": _exporter(plan, names, values, version),
        "autoscaling.yaml": [_scaled_object(one, names, values) for one in plan.sets],
    }


def _object(api: str, kind: str, name: str, labels: Mapping[str, str], **rest: Any) -> Manifest:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": dict(labels)}, **rest}


def _labels(names: Names, component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": names.name, "app.kubernetes.io/component": component}


def _workers(one: WorkerSet, names: Names, values: _Values, version: Mapping[str, str]) -> list[Manifest]:
    """Return the Deployment of a set of processes, and the number of its pods that may go away at a time."""
    labels = _labels(names, one.name)
    name = f"{names.name}-{one.name}"
    container = {
        "name": "worker",
        "image": values.get("image"),
        "command": [*one.arguments(), "--health-host", "0.0.0.0", "--health-port", str(HEALTH_PORT)],  # noqa: S104
        "env": _environment(),
        "envFrom": [{"secretRef": {"name": values.get("secret")}}],
        "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
        # An answer comes from memory, and its deadline is 3 s. Redis away: alive, not ready.
        "livenessProbe": _probe("/liveness", HEALTH_PORT, period_s=10, failures=6),
        "readinessProbe": _probe("/readiness", HEALTH_PORT, period_s=5, failures=3),
        # No new job from here on. The signal to stop comes next, and gives running jobs their time.
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "kill -TSTP 1"]}}},
        "resources": values.get("workers", one.name, "resources"),
        **_LOCKED,
    }
    template = _pod(labels, version, HEALTH_PORT, container, names, stop_s=one.stop_s)
    template["spec"]["topologySpreadConstraints"] = [
        # Jobs of a host that dies run elsewhere within 25 s, if there is an elsewhere.
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
    ]
    selector = {"matchLabels": labels}
    deployment = {
        **values.replicas(one.name),
        "selector": selector,
        # Successors first: jobs that wait are served at every moment of a deployment.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
        "template": template,
    }
    # With one pod `minAvailable: 1` would let no node be drained.
    budget = {"maxUnavailable": 1, "selector": selector}
    return [
        _object("apps/v1", "Deployment", name, labels, spec=deployment),
        _object("policy/v1", "PodDisruptionBudget", name, labels, spec=budget),
    ]


def _exporter(plan: DeploymentPlan, names: Names, values: _Values, version: Mapping[str, str]) -> list[Manifest]:
    labels = _labels(names, "exporter")
    name = f"{names.name}-exporter"
    groups = {"name": "FRAMEWORK_FLEET__QUEUE_GROUPS", "value": groups_text(plan)}
    container = {
        "name": "exporter",
        "image": values.get("image"),
        "command": exporter_arguments("0.0.0.0"),  # noqa: S104 - the address of the pod
        "env": [*_environment(), groups],
        "envFrom": [{"secretRef": {"name": values.get("exporterSecret")}}],
        "ports": [{"name": "metrics", "containerPort": EXPORTER_PORT}],
        "livenessProbe": _probe("/healthz", EXPORTER_PORT, period_s=10, failures=6),
        "readinessProbe": _probe("/healthz", EXPORTER_PORT, period_s=5, failures=3),
        "resources": values.get("exporter", "resources"),
        **_LOCKED,
    }
    # One is enough: it reads all shards. It holds no state, and ends at once.
    template = _pod(labels, version, EXPORTER_PORT, container, names, stop_s=STOP_MARGIN_S)
    deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"name": "metrics", "port": EXPORTER_PORT, "targetPort": "metrics"}]}
    return [
        _object("apps/v1", "Deployment", name, labels, spec=deployment),
        _object("v1", "Service", name, labels, spec=service),
    ]


def _scaled_object(one: WorkerSet, names: Names, values: _Values) -> Manifest:
    """Return the rule by which KEDA chooses the number of pods. An exporter that is away leaves the number as it is."""
    name = f"{names.name}-{one.name}"
    asked = urlencode({"shard": one.shard, "group": one.group})
    trigger = {
        "type": "metrics-api",
        "metricType": "AverageValue",
        "metadata": {
            # KEDA asks from a namespace of its own.
            "url": f"http://{names.name}-exporter.{values.namespace}:{EXPORTER_PORT}/slots_needed?{asked}",
            "valueLocation": "slots_needed",
            "targetValue": str(one.slots),
        },
    }
    slowly = {
        "stabilizationWindowSeconds": 120,
        "policies": [{"type": "Percent", "value": 20, "periodSeconds": 60}],
    }
    spec = {
        "scaleTargetRef": {"name": name},
        "pollingInterval": _POLL_S[one.urgency],
        "minReplicaCount": values.get("workers", one.name, "minReplicas"),
        "maxReplicaCount": values.get("workers", one.name, "maxReplicas"),
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": slowly}}},
        "triggers": [trigger],
    }
    return _object("keda.sh/v1alpha1", "ScaledObject", name, _labels(names, one.name), spec=spec)


_LOCKED: Mapping[str, Any] = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
    "volumeMounts": [
        {"name": "config", "mountPath": f"{FOLDER}/config", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod
    ],
}


def _pod(
    labels: Mapping[str, str],
    version: Mapping[str, str],
    port: int,
    container: Manifest,
    names: Names,
    *,
    stop_s: int,
) -> Manifest:
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}
    return {
        "metadata": {"labels": dict(labels), "annotations": {**version, **scraped}},
        "spec": {
            "automountServiceAccountToken": False,
            # A Service called framework-... would otherwise look like a setting.
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": stop_s,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": f"{names.name}-config"}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }


def _environment() -> list[Manifest]:
    return [
        {"name": "FRAMEWORK_ENV", "value": "production"},
        {"name": "FRAMEWORK_CONFIG_DIR", "value": f"{FOLDER}/config"},
        # Kept pushes survive a restart of the container, not the end of the pod.
        {"name": "FRAMEWORK_VAR_DIR", "value": "/tmp/var"},  # noqa: S108 - a volume of the pod
        # Freed memory goes back to the system.
        {"name": "MALLOC_ARENA_MAX", "value": "2"},
    ]


def _probe(path: str, port: int, *, period_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "timeoutSeconds": 4,
        "failureThreshold": failures,
    }


def exporter_arguments(host: str) -> list[str]:
    """Return the command of the exporter."""
    return ["application-worker", "exporter", "--listen", f"{host}:{EXPORTER_PORT}"]


def groups_text(plan: DeploymentPlan) -> str:
    """Return the groups of queues as the value of a variable: with them the exporter counts each set of processes by itself."""
    return json.dumps(plan.groups, separators=(",", ":"))


def url_variables(plan: DeploymentPlan) -> dict[str, str]:
    """Return the variables that an operator has to give, with examples of the kind of URL that the shard has."""
    urls = {shard: plan.settings.shards[shard].url for shard in plan.shards}
    return {f"FRAMEWORK_SHARDS__{shard.upper()}__URL": _example_url(url) for shard, url in urls.items()}


def _example_url(url: str) -> str:
    parts = None if url == EMBEDDED else parse_redis_url(url)
    if parts is None or not (parts.cluster or parts.sentinels):
        return "redis://USER:PASSWORD@HOST:6379/0"
    # The nodes and the hash tag are known, the user and the password are not. Other parameters may be secret.
    scheme, _, rest = url.partition("://")
    place = rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://USER:PASSWORD@{place}" + (f"?tag={parts.tag}" if parts.tag else "")


def _secrets(plan: DeploymentPlan, names: Names) -> str:
    secrets = [
        _object("v1", "Secret", name, _labels(names, "secret"), stringData=url_variables(plan))
        for name in (names.name, f"{names.name}-exporter")
    ]
    return _documents(secrets)
