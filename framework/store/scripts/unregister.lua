-- Strike a dead process from the registry, and from Sidekiq's list, once nothing can come into its working list any more.
-- KEYS    1 its lease  2 its working list  3 registry (ZSET)  4 Sidekiq's list of processes (SET)  5.. what it wrote of itself
-- ARGV    1 identity  2 seconds since its last beat, or since its parent saw it die, before it may be forgotten
-- RETURN  1 forgotten, 0 kept
-- COST    O(log P + what it said)
-- CRASH   nothing moves. The wait outlasts every BLMOVE the dead process may have left parked on the server.
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('LLEN', KEYS[2]) > 0 then return 0 end
local beat = redis.call('ZSCORE', KEYS[3], ARGV[1])
if not beat then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
if now - math.abs(tonumber(beat)) < tonumber(ARGV[2]) then return 0 end
redis.call('DEL', unpack(KEYS, 5))
-- A list that is none is for others to repair.
redis.pcall('SREM', KEYS[4], ARGV[1])
return redis.call('ZREM', KEYS[3], ARGV[1])
