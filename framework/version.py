"""The version of this release, for the process record and ``--version``."""

VERSION = "0.1.0"


def install_extra(name: str) -> str:
    """Return the command that adds an extra. It names a path: the distribution is on no package index."""
    return f'pip install "PATH[{name}]" (PATH: the wheel or the checkout that you installed)'
