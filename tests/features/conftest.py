from tests.cli.conftest import cold_site, jobs, proofs, release, run, two_shards

__all__ = ["cold_site", "jobs", "proofs", "release", "run", "two_shards"]
