-- Bring a deleted job back to the set that it was deleted from.
-- KEYS    1 deleted jobs (ZSET)  2 the sorted set of jobs
-- ARGV    1 its member there  2 its score in the set  3 the payload  4 what it holds there (parts/release.lua)
-- RETURN  1 done, 0 it is no longer there, and nothing was written, -1 the set's key is of another type, and it stays as it is
-- COST    O(log N)
-- CRASH   before: among the deleted jobs. after: in its set. The ZREM that finds the member moves it: of two operators one brings it
--         back. Called again after a lost reply, it finds none.
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'zset' then return -1 end
-- It writes nothing: without the right to it the script ends here, before the job has left.
redis.call('ZADD', KEYS[2], 'XX', 'LT', '+inf', '')
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[2], 'NX', ARGV[2], ARGV[3])
redis.pcall('DECRBY', KEYS[1] .. ':bytes', #ARGV[1])
if ARGV[4] ~= '' then pcall(release, ARGV[4]) end
return 1
