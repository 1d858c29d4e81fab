-- Remove a dead process from the registry and from Sidekiq's list, once its working lists can receive no more jobs.
-- KEYS    1 its lease  2 registry (ZSET)  3 Sidekiq's list of processes (SET)  4.. its working lists, then its own keys
-- ARGV    1 identity  2 seconds since its last heartbeat, or since its parent saw it die, before it may be removed
--         3 how many working lists it has: one, and one per further capsule
-- RETURN  1 removed, 0 kept
-- COST    O(log P + size of its keys)
-- CRASH   nothing moves. The wait outlasts every BLMOVE that the dead process may have left blocked on the server.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local first = 4 + tonumber(ARGV[3])
for i = 4, first - 1 do
  if redis.call('LLEN', KEYS[i]) > 0 then return 0 end
end
local beat = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not beat then return 0 end
local now = redis_now()
if now - math.abs(tonumber(beat)) < tonumber(ARGV[2]) then return 0 end
redis.call('DEL', unpack(KEYS, first))
-- A key of another type is left for an operator.
redis.pcall('SREM', KEYS[3], ARGV[1])
return redis.call('ZREM', KEYS[2], ARGV[1])
