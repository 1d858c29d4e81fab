from tests.process.conftest import proofs, release, site

__all__ = ["proofs", "release", "site"]
