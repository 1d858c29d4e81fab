"""Let jobs read from a replica that is fresh enough: the push records WAL positions, the run chooses a replica that has
reached them.
"""
