-- Let the writes of this script pass at maxmemory: the push of a small class, for which a reserve above it is kept (shard/held_back.py).
-- COST    O(1)
-- CRASH   nothing moves.
-- UNLINK is allowed there although it removes nothing, and as the script's first write lets the others pass.
redis.call('UNLINK', 'aw:push:')
