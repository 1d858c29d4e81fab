"""The command line of ``scripts/prove``: one sub-command per proof, each run by the ``run`` of the module of its name."""

import argparse


def parse(doc: str | None) -> argparse.Namespace:
    """Return what was asked for; ``wish.proof`` is the module to run."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    proofs = parser.add_subparsers(dest="proof", required=True, metavar="PROOF")

    matrix = proofs.add_parser("matrix", help="the tables of docs/reliability.md: which test shows which row")
    matrix.add_argument("--write", action="store_true", help="write them into the page")
    matrix.add_argument("--check", action="store_true", help="status 1 when the page is not as it should be")

    return parser.parse_args()
