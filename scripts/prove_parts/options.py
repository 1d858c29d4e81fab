"""The command line of ``scripts/prove``: one sub-command per proof, each run by the ``run`` of the module of its name."""

import argparse


def parse(doc: str | None) -> argparse.Namespace:
    """Return what was asked for; ``wish.proof`` is the module to run."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_subparsers(dest="proof", required=True, metavar="PROOF")
    return parser.parse_args()
