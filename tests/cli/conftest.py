from tests.process.conftest import cold_site, proofs, release, site

__all__ = ["cold_site", "proofs", "release", "site"]
