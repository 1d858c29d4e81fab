"""The version of this release, for the process record and ``--version``."""

VERSION = "0.1.0"


def install_extra(name: str) -> str:
    """Return the commands that add an extra. The first names a path: the distribution is on no package index."""
    command = f'pip install "PATH[{name}]" (PATH: the wheel or the checkout that you installed)'
    # In a checkout, scripts/demo installs fewer packages than scripts/setup.
    return f"{command}, or scripts/setup in a checkout with its own .venv"
