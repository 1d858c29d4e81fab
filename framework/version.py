"""The version of this release, for the process record and ``--version``."""

VERSION = "0.1.0"
