-- Delete jobs of a queue: an operator drops them.
-- KEYS    1 the queue, or the list where it was set aside  2 counters (HASH)
-- ARGV    1 where to look: 0 at the right end only, where the jobs are in this order; 1 from the left end on, -1 from the right end on
--         2 number of jobs n  3 number of series
--         then n payloads as they were read; for each what it holds (parts/release.lua), '' for nothing; for each the position (from 1)
--         of its series; then the series in which they are counted
-- RETURN  per job: 1 dropped, 0 it is not there, and nothing was written for it
-- COST    O(n) at the right end; else n times the distance from the end where the search begins
-- CRASH   before: in the list. after: gone, with its lock and slots, and counted. The LREM that finds a job wins: a fetch may race.
local place, n, series = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local dropped, counts = {}, {}
for i = 1, n do
  local payload = ARGV[3 + i]
  dropped[i] = 0
  if place ~= 0 or redis.call('LINDEX', KEYS[1], -1) == payload then
    dropped[i] = redis.call('LREM', KEYS[1], place == 0 and -1 or place, payload)
  end
  if dropped[i] == 1 then
    release(ARGV[3 + n + i])
    local own = tonumber(ARGV[3 + n + n + i])
    counts[own] = (counts[own] or 0) + 1
  end
end
for own = 1, series do
  if counts[own] then redis.pcall('HINCRBY', KEYS[2], ARGV[3 + n + n + n + own], counts[own]) end
end
return dropped
