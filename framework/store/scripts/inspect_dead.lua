-- Look whether a process is dead, and at what it left.
-- KEYS    1 its lease  2 its working list  3 registry (ZSET)  4 what it has said about its runs (HASH)
--         5 since when there was no gap in anybody's beats (STRING)
-- ARGV    1 its identity  2 most jobs to return  3 seconds of silence until it is dead
--         4 seconds for which beats must have come through before the silent are dead
-- RETURN  {} when it lives, or cannot be told from the living; else
--         { now, length of the list, [said about runs: field, value, ...], youngest payload, ... }
-- COST    O(log P + page)
-- CRASH   nothing moves.
-- After an outage longer than the lease every lease is gone and everybody lives. So the silent are dead only when beats have
-- come through for a while: no matter whose, and how long the asker has lived. Whom its parent has seen die (score below 0) is
-- dead at once.
if redis.call('EXISTS', KEYS[1]) == 1 then return {} end
local beat = redis.call('ZSCORE', KEYS[3], ARGV[1])
if not beat then return {} end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
if tonumber(beat) >= 0 then
  local since = tonumber(redis.pcall('GET', KEYS[5]))
  if not since or since ~= since then since = math.huge end
  -- The clock went back: what was noted would count for nothing until it is there again. What is no time would do so for ever.
  if since > now then redis.call('DEL', KEYS[5]) end
  if now - tonumber(beat) < tonumber(ARGV[3]) or now - since < tonumber(ARGV[4]) then return {} end
end
local reply = { string.format('%.6f', now), redis.call('LLEN', KEYS[2]), redis.call('HGETALL', KEYS[4]) }
for _, payload in ipairs(redis.call('LRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1)) do reply[#reply + 1] = payload end
return reply
