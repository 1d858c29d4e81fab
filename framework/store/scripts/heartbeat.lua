-- Renew a process's lease and its place in the registry, and say that beats come through.
-- KEYS    1 lease  2 registry (ZSET)  3 what it has said about its runs (HASH)  4 since when there was no gap (STRING)
-- ARGV    1 identity  2 lease in ms  3 its slots  4 longest time without anybody's beat that is no gap, in ms
-- RETURN  { 1 when the lease had never lapsed, 0 when it is new or had lapsed; Redis's time in seconds;
--           1 when the registry did not know the process; 1 when somebody's beats have come through }
-- COST    O(log P), P processes
-- CRASH   nothing moves. PEXPIRE comes first because it is allowed at maxmemory and, as the script's first write,
--         lets SET and ZADD pass too: a full Redis must not make the living look dead.
-- The gap is told by a key that runs out as leases do, but long before: a clock that jumps, an old snapshot or a replica that
-- lags cannot take the leases and leave it.
local held = redis.call('PEXPIRE', KEYS[1], ARGV[2])
local steady = redis.call('PEXPIRE', KEYS[4], ARGV[4])
local time = redis.call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
if held == 0 then
  redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
  redis.call('HSET', KEYS[3], 'slots', ARGV[3])
end
if steady == 0 then redis.call('SET', KEYS[4], now, 'PX', ARGV[4]) end
local new = redis.call('ZADD', KEYS[2], now, ARGV[1])
return { held, now, new, steady }
