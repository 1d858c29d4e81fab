-- Lower or raise the current limit by one step, by the load of the resources that its jobs use.
-- KEYS    1 the limit (HASH; parts/slots.lua has the others)
-- ARGV    1 the application's limit, above 0  2 'hard' (half), 'soft' (four fifths), or 'none': a tenth more, one at least
--         3 least seconds between two steps down  4 and before one up  5 seconds until the lowered limit expires
-- RETURN  { old limit, new limit }; equal when it is too early for a step, or no step is left
-- COST    O(1)
-- CRASH   nothing moves. Redis's clock decides; a repeated call takes one step only. HDEL is allowed at maxmemory, and first.
local base, limit, now = KEYS[1], tonumber(ARGV[1]), redis_now()
local fields = redis.call('HMGET', base, 'current', 'current_until', 'throttled_at')
local current, at = tonumber(fields[1]), tonumber(fields[3]) or 0
if not current or (tonumber(fields[2]) or 0) <= now or current > limit then current = limit end
local pause = ARGV[2] == 'none' and tonumber(ARGV[4]) or tonumber(ARGV[3])
-- A clock that went back must not delay a step.
if at <= now and now - at < pause then return { current, current } end
local after
if ARGV[2] == 'none' then
  after = math.min(limit, math.max(current + 1, math.floor(current * 1.1)))
else
  after = math.max(1, math.ceil(current * (ARGV[2] == 'hard' and 0.5 or 0.8)))
end
redis.call('HDEL', base, 'current', 'current_until')
if after < limit then
  redis.call('HSET', base, 'current', after, 'current_until', string.format('%.6f', now + tonumber(ARGV[5])))
end
if after ~= current or ARGV[2] ~= 'none' then redis.call('HSET', base, 'throttled_at', string.format('%.6f', now)) end
return { current, after }
