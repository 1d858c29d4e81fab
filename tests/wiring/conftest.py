from tests.process.conftest import cold_site, proofs, release

__all__ = ["cold_site", "proofs", "release"]
