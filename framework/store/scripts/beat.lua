-- Renew a process's lease and its place in the registry.
-- KEYS    1 lease  2 registry (ZSET)
-- ARGV    1 identity  2 lease in ms
-- RETURN  1 when the lease had never lapsed, 0 when it is new or had lapsed
-- COST    O(log P), P processes
-- CRASH   nothing moves. PEXPIRE comes first because it is allowed at maxmemory and, as the script's first write,
--         lets SET and ZADD pass too: a full Redis must not make the living look dead.
local held = redis.call('PEXPIRE', KEYS[1], ARGV[2])
if held == 0 then redis.call('SET', KEYS[1], '1', 'PX', ARGV[2]) end
redis.call('ZADD', KEYS[2], redis.call('TIME')[1], ARGV[1])
return held
