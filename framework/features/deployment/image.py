"""Describe the image of an installation, for docker, podman and buildah."""

import sys
from pathlib import Path

from framework.features.deployment.kubernetes import FOLDER, USER_ID
from framework.version import VERSION

_DOCKERFILE = """\
# Build it from the project's folder: docker build -f {folder}/Dockerfile -t REGISTRY/NAME:TAG .
FROM python:{python}-slim
WORKDIR {home}
{install}
COPY . .
# The processes may write nothing here, so Python could not keep its bytecode.
RUN python -m compileall -q .
ENV FRAMEWORK_ENV=production FRAMEWORK_CONFIG_DIR={home}/config MALLOC_ARENA_MAX=2 PYTHONUNBUFFERED=1 HOME=/tmp
USER {user}:{user}
# All queues; a deployment gives its own command.
CMD ["application-worker", "cluster", "*"]
"""

_IGNORED = """\
.git
.venv*
**/__pycache__
var
.env*
"""


def image_files(root: Path, folder: str) -> dict[str, str]:
    """Return the Dockerfile of the project at ``root`` and what its build leaves out, by name."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = _DOCKERFILE.format(folder=folder, python=python, home=FOLDER, install=_install(root), user=USER_ID)
    return {"Dockerfile": text, "Dockerfile.dockerignore": _IGNORED}


def _install(root: Path) -> str:
    """Return the lines that install the packages, before the sources: a change of the sources alone installs nothing again."""
    if (root / "requirements.txt").exists():
        return "COPY requirements.txt ./\nRUN pip install --no-cache-dir -r requirements.txt"
    return f"RUN pip install --no-cache-dir application-worker=={VERSION}"
