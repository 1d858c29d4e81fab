-- Save the cursor of a running iteration.
-- KEYS    1 working list  2 its state (HASH, wire/iteration_state.py)
-- ARGV    1 payload as fetched  2 token of the run  3 how many seconds the state is kept  4.. fields and values
-- RETURN  0 fenced: the process no longer owns the job, or a later run has begun; then nothing was written
--         1 saved, 2 saved, and the job was cancelled
-- COST    O(W)
-- CRASH   nothing moves. before: the cursor of the last save, and the items since then run again. after: this cursor.
if not redis.call('LPOS', KEYS[1], ARGV[1]) or redis.call('HGET', KEYS[2], 'aw_run') ~= ARGV[2] then return 0 end
-- EXPIRE first, which is allowed at maxmemory.
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('HSET', KEYS[2], unpack(ARGV, 4))
return redis.call('HEXISTS', KEYS[2], 'cancelled') == 1 and 2 or 1
