-- Delete one held job: an operator drops it.
-- KEYS    1 the set  2 counters (HASH)  3 status key, if the job is tracked
-- ARGV    1 member as it was read  2 what the job holds (parts/release.lua)  3 its state  4 how many seconds that is kept, '' and 0
--         for no state  5 the series in which it is counted
-- RETURN  1 dropped, 0 it is no longer there, and nothing was written
-- COST    O(log N)
-- CRASH   before: held. after: gone, with its lock, and counted. The ZREM that finds the member wins: a release may race.
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
if KEYS[3] then redis.pcall('SET', KEYS[3], ARGV[3], 'EX', ARGV[4]) end
release(ARGV[2])
redis.pcall('HINCRBY', KEYS[2], ARGV[5], 1)
return 1
