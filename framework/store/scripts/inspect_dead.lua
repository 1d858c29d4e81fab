-- Return what a process left, if it is dead.
-- KEYS    1 its lease  2 its working list  3 registry (ZSET)  4 the process's notes about its runs (HASH)
--         5 since when the heartbeats of all processes had no gap (STRING)
-- ARGV    1 its identity  2 most jobs to return  3 seconds of silence until it is dead
--         4 seconds without a gap in the heartbeats before a silent process is dead
-- RETURN  {} when it is alive, or may be; else
--         { now, length of the list, [notes about runs: field, value, ...], youngest payload, ... }
-- COST    O(log P + page)
-- CRASH   nothing moves.
-- After an outage longer than the lease every lease is gone although every process is alive. So a silent process is dead only when
-- heartbeats of any process have arrived without a gap for a while, however young the caller is. A process whose parent saw it die
-- (score below 0) is dead at once (decision 28).
if redis.call('EXISTS', KEYS[1]) == 1 then return {} end
local beat = redis.call('ZSCORE', KEYS[3], ARGV[1])
if not beat then return {} end
local now = redis_now()
if tonumber(beat) >= 0 then
  local since = tonumber(redis.pcall('GET', KEYS[5]))
  if not since or since ~= since then since = math.huge end
  -- The clock went back, so the noted time would not count until the clock reaches it again; a value that is no time, never.
  if since > now then redis.call('DEL', KEYS[5]) end
  if now - tonumber(beat) < tonumber(ARGV[3]) or now - since < tonumber(ARGV[4]) then return {} end
end
local reply = { string.format('%.6f', now), redis.call('LLEN', KEYS[2]), redis.call('HGETALL', KEYS[4]) }
for _, payload in ipairs(redis.call('LRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1)) do reply[#reply + 1] = payload end
return reply
