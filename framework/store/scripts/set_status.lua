-- Write the last state of a tracked job. A script, because a full server refuses a plain SET, and no later step would write it.
-- KEYS    1 status key
-- ARGV    1 state  2 how many seconds it is kept
-- RETURN  nothing
-- COST    O(1)
-- CRASH   before: the old state, and the job is still in the working list. after: the new state, and the job may run again.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
