-- Look whether a process is dead, and at what it left.
-- KEYS    1 its lease  2 its working list  3 registry (ZSET)  4 what it has said about its runs (HASH)
-- ARGV    1 its identity  2 most jobs to return
--         what the asker's own beats have seen, in seconds of Redis's clock: 3 the last one  4 since when none was late
--         5 longest time between two beats  6 how long Redis must have been up before the silent are dead
-- RETURN  {} when it lives, or cannot be told from the living; else
--         { now, length of the list, [said about runs: field, value, ...], youngest payload, ... }
-- COST    O(log P + page)
-- CRASH   nothing moves; reads only.
-- After an outage longer than the lease every lease is gone and everybody lives. So the silent are dead only when Redis
-- has been up for a while, which the asker's own beats prove. Whom its parent has seen die (score below 0) is dead at once.
if redis.call('EXISTS', KEYS[1]) == 1 then return {} end
local beat = redis.call('ZSCORE', KEYS[3], ARGV[1])
if not beat then return {} end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
if tonumber(beat) >= 0 then
  local last = tonumber(ARGV[3])
  if now < last or now - last > tonumber(ARGV[5]) then return {} end
  if now - tonumber(ARGV[4]) < tonumber(ARGV[6]) then return {} end
end
local reply = { string.format('%.6f', now), redis.call('LLEN', KEYS[2]), redis.call('HGETALL', KEYS[4]) }
for _, payload in ipairs(redis.call('LRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1)) do reply[#reply + 1] = payload end
return reply
