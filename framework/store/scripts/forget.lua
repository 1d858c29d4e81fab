-- Strike a dead process from the registry once nothing can come into its working list any more.
-- KEYS    1 its lease  2 its working list  3 registry (ZSET)
-- ARGV    1 identity  2 seconds since its last beat before it may be forgotten
-- RETURN  1 forgotten, 0 kept
-- COST    O(log P)
-- CRASH   nothing moves. The wait outlasts every BLMOVE the dead process may have left parked on the server.
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('LLEN', KEYS[2]) > 0 then return 0 end
local beat = redis.call('ZSCORE', KEYS[3], ARGV[1])
if not beat or tonumber(redis.call('TIME')[1]) - tonumber(beat) < tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[3], ARGV[1])
