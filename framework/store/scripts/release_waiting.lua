-- Sweep a limit at which jobs wait: free expired slots, and assign free ones. For the case that no end of a job does it.
-- KEYS    1 the limit (HASH; parts/slots.lua has the others)
-- ARGV    1 the limit as this process knows it: 0 none, below 0 pause, '' when it does not know  2 most slots of a scope, 0 no such limit
--         3 most jobs to hand over  4 after how many seconds without a known limit the waiting jobs are released without one
--         (without a limit fewer while the memory is near its end: parts/room.lua)
-- RETURN  { jobs released; slots taken; the limit, '' unknown; 1 when jobs still wait, else 0 }
-- COST    O(handed * log N)
-- CRASH   each job waits, or is in its queue. Any number of processes may do this at once.
-- ZREM first, which is allowed at maxmemory.
local base, now = KEYS[1], redis_now()
redis.call('ZREM', base .. ':running', '')
if ARGV[1] ~= '' then
  redis.call('HSET', base, 'limit', ARGV[1], 'share', ARGV[2], 'known', string.format('%.6f', now))
  redis.call('SADD', 'aw:limits', base)
  if is_shared(ARGV[1]) then redis.call('SADD', 'aw:limits:shared', base) end
else
  local known = tonumber(redis.call('HGET', base, 'known'))
  if not known then
    redis.call('HSET', base, 'known', string.format('%.6f', now))
  elseif now - known > tonumber(ARGV[4]) then
    redis.call('HSET', base, 'limit', '0')
  end
end
free_expired(base, now)
-- The share may have been raised, or the limit be gone.
local limit = limit_of(base, now)
for _, scope in ipairs(redis.pcall('SRANDMEMBER', base .. ':full', 100)) do
  if limit == 0 or not scope_is_full(base, scope) then give_turn(base, scope) end
end
-- The key of jobs without a scope is known, so they get their turn back even after the set of turns was lost.
local unscoped = redis.pcall('ZCARD', base .. ':waiting:')
if type(unscoped) == 'number' and unscoped > 0 then redis.pcall('ZADD', base .. ':turns', 'NX', next_turn(base), '') end
local most = tonumber(ARGV[3])
if limit == 0 then
  local scope = redis.pcall('ZRANGE', base .. ':turns', 0, 0)[1] or ''
  most = room(base .. ':waiting:' .. scope, 0, most)
end
local handed = hand_over(base, now, most)
return { handed, running(base), tostring(limit or ''), redis.call('SISMEMBER', 'aw:limits:waiting', base) }
