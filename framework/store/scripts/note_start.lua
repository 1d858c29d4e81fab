-- Note that a suspect (a job that a dead process had) starts here, and which suspects have ended.
-- KEYS    1 lease  2 the process's notes about its runs (HASH)
-- ARGV    1 lease in ms  2 the payload's digest  3.. digests of payloads whose runs have ended
-- RETURN  1 when the lease is held, else 0
-- COST    O(ended)
-- CRASH   nothing moves. Not run, or the job ended a moment ago: at worst a death is not counted, or counted, for one job.
local held = redis.call('PEXPIRE', KEYS[1], ARGV[1])
if #ARGV > 2 then redis.call('HDEL', KEYS[2], unpack(ARGV, 3)) end
redis.call('HSET', KEYS[2], ARGV[2], '1')
return held
