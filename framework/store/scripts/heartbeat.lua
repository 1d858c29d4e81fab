-- Renew a process's lease and its registration, and note that heartbeats arrive.
-- KEYS    1 lease  2 registry (ZSET)  3 the process's notes about its runs (HASH)  4 since when there was no gap (STRING)
-- ARGV    1 identity  2 lease in ms  3 its slots  4 longest time without a heartbeat of any process that is no gap, in ms
--         5.. per further capsule: its field in the notes, its slots
-- RETURN  { 1 when the lease had never lapsed, 0 when it is new or had lapsed; Redis's time in seconds;
--           1 when the registry did not know the process; 1 when heartbeats of some process have arrived without a gap;
--           the time of its last heartbeat as the registry had it, '' for none }: a time before that of the last reply shows that Redis
--         came back from an older snapshot
-- COST    O(log P), P processes
-- CRASH   nothing moves. PEXPIRE comes first because it is allowed at maxmemory and, as the script's first write,
--         lets SET and ZADD pass too: a full Redis must not make live processes look dead.
-- A key that expires as leases do, but much earlier, shows the gap: a clock that jumps, an old snapshot or a lagging replica cannot
-- lose the leases and keep this key.
local held = redis.call('PEXPIRE', KEYS[1], ARGV[2])
local steady = redis.call('PEXPIRE', KEYS[4], ARGV[4])
local now = string.format('%.6f', redis_now())
if held == 0 then
  redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
  redis.call('HSET', KEYS[3], 'slots', ARGV[3], unpack(ARGV, 5))
end
if steady == 0 then redis.call('SET', KEYS[4], now, 'PX', ARGV[4]) end
local before = redis.call('ZSCORE', KEYS[2], ARGV[1])
local new = redis.call('ZADD', KEYS[2], now, ARGV[1])
return { held, now, new, steady, before or '' }
