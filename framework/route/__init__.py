"""Step 3: which queue on which shard. Pure: rules and a declaration in, a ``Route`` out."""
