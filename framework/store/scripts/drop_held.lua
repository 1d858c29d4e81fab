-- Delete held jobs of one set: an operator drops them.
-- KEYS    1 the set  2 counters (HASH)
-- ARGV    1 number of series  then the series in which they are counted
--         then per job: member as it was read, what the job holds (parts/release.lua), '' for nothing, the position (from 1) of its series
-- RETURN  jobs dropped; the others are no longer there, and nothing was written for them
-- COST    O(n log N)
-- CRASH   before: held. after: gone, with its lock, and counted. The ZREM that finds the member wins: a release may race. Called again,
--         it finds no job.
local set, first, counts, dropped = KEYS[1], tonumber(ARGV[1]) + 2, {}, 0
for at = first, #ARGV, 3 do
  if redis.call('ZREM', set, ARGV[at]) == 1 then
    dropped = dropped + 1
    local own = tonumber(ARGV[at + 2])
    counts[own] = (counts[own] or 0) + 1
    -- An ACL may refuse it, and Lua does not roll back: the jobs behind it are dropped too.
    if ARGV[at + 1] ~= '' then late().try_release(ARGV[at + 1]) end
  end
end
for own, count in pairs(counts) do redis.pcall('HINCRBY', KEYS[2], ARGV[1 + own], count) end
return dropped
