-- Renew a process's lease and its place in the registry.
-- KEYS    1 lease  2 registry (ZSET)  3 what it has said about its runs (HASH)
-- ARGV    1 identity  2 lease in ms  3 its slots
-- RETURN  { 1 when the lease had never lapsed, 0 when it is new or had lapsed; Redis's time in seconds }
-- COST    O(log P), P processes
-- CRASH   nothing moves. PEXPIRE comes first because it is allowed at maxmemory and, as the script's first write,
--         lets SET and ZADD pass too: a full Redis must not make the living look dead.
local held = redis.call('PEXPIRE', KEYS[1], ARGV[2])
local time = redis.call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
if held == 0 then
  redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
  redis.call('HSET', KEYS[3], 'slots', ARGV[3])
end
redis.call('ZADD', KEYS[2], now, ARGV[1])
return { held, now }
