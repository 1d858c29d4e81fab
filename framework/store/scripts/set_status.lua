-- Write the last state of a tracked job. A script, as a full server refuses SET alone, and nobody would write it later.
-- KEYS    1 status key
-- ARGV    1 state  2 how many seconds it is kept
-- RETURN  nothing
-- COST    O(1)
-- CRASH   before: the former state, and the job has not left. after: it is written, and the job may run again.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
