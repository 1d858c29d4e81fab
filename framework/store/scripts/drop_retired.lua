-- Remove a job of a retired class from this process's working list, and count it.
-- KEYS    1 working list  2 counts by class name (HASH)  3 status key, if the job is tracked
-- ARGV    1 payload as fetched  2 class name  3 its state  4 how many seconds that is kept, '' and 0 for no state
--         5 what it holds (parts/release.lua)
-- RETURN  1 dropped, 0 fenced: the process no longer owns the job, and nothing was written
-- ERROR   the key of the counts is of another type, or the count no number: the job is back in the working list
-- COST    O(W)
-- CRASH   before: still in the working list, uncounted. after: gone and counted. Called again after a lost reply, it finds no
--         job and counts nothing.
if redis.call('LREM', KEYS[1], '-1', ARGV[1]) == 0 then return 0 end
local counted = redis.pcall('HINCRBY', KEYS[2], ARGV[2], 1)
if type(counted) == 'table' and counted.err then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return counted
end
if KEYS[3] then redis.pcall('SET', KEYS[3], ARGV[3], 'EX', ARGV[4]) end
release(ARGV[5])
return 1
