-- Begin one run of an iterating job: count it, and return where the last run stopped.
-- KEYS    1 working list  2 its state (HASH, wire/iteration_state.py)
-- ARGV    1 payload as fetched  2 token of the run  3 how many seconds the state is kept
-- RETURN  all fields and values of the state; an empty list when fenced: the process no longer owns the job, and nothing was written
-- ERROR   the state's key is of another type
-- COST    O(W)
-- CRASH   nothing moves. Called again after a lost reply, it counts the run once: the token is stored. From now on no earlier run can
--         write the cursor.
if not redis.call('LPOS', KEYS[1], ARGV[1]) then return {} end
-- EXPIRE first, which is allowed at maxmemory.
redis.call('EXPIRE', KEYS[2], ARGV[3])
if redis.call('HGET', KEYS[2], 'aw_run') ~= ARGV[2] then
  redis.call('HINCRBY', KEYS[2], 'ex', 1)
  redis.call('HSET', KEYS[2], 'aw_run', ARGV[2])
  -- Without a cursor Sidekiq 8.1's pages answer 500.
  redis.call('HSETNX', KEYS[2], 'c', 'null')
  redis.call('HSETNX', KEYS[2], 'rt', '0')
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
return redis.call('HGETALL', KEYS[2])
