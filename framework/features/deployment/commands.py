"""``deploy``: write the files with which an image, Kubernetes, Helm or systemd runs an installation."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import click

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.features.deployment.image import image_files
from framework.features.deployment.kubernetes import MOST_BYTES, Names, chart_files, manifest_files
from framework.features.deployment.systemd import unit_files
from framework.features.deployment.worker_sets import DeploymentPlan, plan_installation
from framework.known_secrets import KnownSecrets
from framework.settings.base import secrets_of
from framework.settings.files import read_yaml
from framework.terminal.generated_files import mark_of, write_generated, yaml_text
from framework.terminal.groups import CommandGroup
from framework.terminal.options import modules_option
from framework.terminal.output import display_path, echo, reports_errors
from framework.terminal.project import Project, load_project
from framework.typeguards import is_list, is_mapping

_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?")


def _label(_context: click.Context, option: click.Parameter, value: str) -> str:
    if _LABEL.fullmatch(value) is None:
        raise click.BadParameter("must have 1 to 22 of a-z 0-9 -, with a letter in front.", param=option)
    return value


_folder = click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
_name = click.option(
    "--name",
    default="application-worker",
    show_default=True,
    callback=_label,
    help="The first part of the name of each object, or unit.",
)
_image = click.option("--image", required=True, help="The image of the processes, with its tag.")
_namespace = click.option(
    "--namespace",
    default="default",
    show_default=True,
    callback=_label,
    help="The namespace of the objects.",
)


@click.group("deploy", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def deploy() -> None:
    """Write what runs an installation on many machines: an image, manifests, a chart, units."""


@deploy.command("image")
@_folder
@modules_option
@reports_errors
def image(folder: Path, modules: Sequence[str]) -> None:
    """Write a Dockerfile for the project into the folder DIR.

    Its processes run as a user without a name and need no writable folder but /tmp.

    Status 1: a file of the same name was not written by this command.
    """
    project = load_project(modules)
    _write("image", folder, image_files(project.settings.root, display_path(folder.absolute())))


@deploy.command("kubernetes")
@_folder
@_image
@_name
@_namespace
@click.option(
    "--autoscaling/--no-autoscaling",
    default=True,
    show_default=True,
    help="Write objects of KEDA; without them the number of pods is fixed.",
)
@modules_option
@reports_errors
def kubernetes(
    folder: Path, *, image: str, name: str, namespace: str, autoscaling: bool, modules: Sequence[str]
) -> None:
    """Write manifests of Kubernetes for `kubectl apply -k DIR`.

    Each group of queues (setting fleet.queue_groups) has a Deployment on each shard with queues of it. What differs between
    environments belongs into an overlay of kustomize.

    Status 1: a file of the same name was not written by this command.
    """
    plan, config = _read(modules)
    _write("kubernetes", folder, manifest_files(plan, Names(name, image, namespace), config, autoscaling=autoscaling))


@deploy.command("chart")
@_folder
@_image
@_name
@modules_option
@reports_errors
def chart(folder: Path, *, image: str, name: str, modules: Sequence[str]) -> None:
    """Write a Helm chart of the same objects, with values.yaml for what differs between environments.

    Status 1: a file of the same name was not written by this command.
    """
    plan, config = _read(modules)
    _write("chart", folder, chart_files(plan, Names(name, image, ""), config))


@deploy.command("systemd")
@_folder
@_name
@click.option(
    "--folder",
    "home",
    metavar="FOLDER",
    help="The folder on the machines with `venv` and the link `current` to the release. Default: /srv/NAME.",
)
@modules_option
@reports_errors
def systemd(folder: Path, *, name: str, home: str | None, modules: Sequence[str]) -> None:
    """Write units of systemd: one for each group of queues and shard, and one for the exporter.

    Enable on a machine the units that it shall run.

    Status 1: a file of the same name was not written by this command.
    """
    at = PurePosixPath(home or f"/srv/{name}")
    if not at.is_absolute() or re.search(r"\s|%", str(at)):
        raise click.UsageError(f"--folder {str(at)!r} must be an absolute path without blanks and %.")
    plan = plan_installation(load_project(modules))
    _warn(plan)
    _write("systemd", folder, unit_files(plan, name, at))


def _read(modules: Sequence[str]) -> tuple[DeploymentPlan, Mapping[str, str]]:
    project = load_project(modules)
    plan = plan_installation(project)
    _warn(plan)
    return plan, _config(project)


def _warn(plan: DeploymentPlan) -> None:
    for remark in plan.warnings:
        echo(remark, err=True)


def _config(project: Project) -> dict[str, str]:
    """Return the files of the config folder, without comments.

    Raises:
        ConfigurationError: a file has a secret, which belongs into a Secret, or all are too large for a ConfigMap.
    """
    settings = project.settings
    secrets = KnownSecrets()
    secrets.add(secrets_of(settings))
    found: dict[str, str] = {}
    problems: list[ConfigurationProblem] = []
    for path in sorted(settings.config_dir.glob("*.yml")):
        content = read_yaml(path)
        place = settings.config_file_label(path.name)
        problems += [
            ConfigurationProblem(place, key, "is a secret: give it in a variable of the Secret, and remove it here")
            for key, text in _texts(content)
            if secrets.masked(text) != text
        ]
        found[path.name] = yaml_text(content)
    size = sum(len(text.encode()) for text in found.values())
    if size > MOST_BYTES:
        message = (
            f"its files have {size:,} bytes, and a ConfigMap at most {MOST_BYTES:,}: leave the folder in the image"
        )
        problems.append(ConfigurationProblem(settings.config_label, "", message))
    if problems:
        raise ConfigurationError(problems)
    return found


def _texts(content: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in the content of a file, with the path of its key."""
    if is_mapping(content):
        for key, value in content.items():
            yield from _texts(value, f"{path}.{key}" if path else str(key))
    elif is_list(content):
        for value in content:
            yield from _texts(value, path)
    elif isinstance(content, str):
        yield path, content


def _write(kind: str, folder: Path, texts: Mapping[str, str]) -> None:
    mark = mark_of(f"deploy {kind}")
    write_generated(
        {folder / name: mark + text for name, text in texts.items()},
        lambda path: path.read_text(encoding="utf-8", errors="replace").startswith(mark),
    )
