-- Return the jobs of a block (wire/blocks.py) that was fetched as a job to the right end of their list: it was in a sub-queue, or a
-- Ruby process had taken it, or it was in the dead set.
-- KEYS    1 working list  2 the queue  3 set of queue names  4 jobs in blocks (HASH)  5 blocks (HASH)
-- ARGV    1 the block as fetched  2 queue name  3 how many of its jobs are counted among those in blocks  then its jobs, the newest first
-- RETURN  1 done, 0 fenced: the process no longer owns it, and nothing was written
-- ERROR   the queue's key is of another type: the block is back in the working list
-- COST    O(W + jobs)
-- CRASH   before: in the working list. after: its jobs are in the queue. Called again, it is fenced.
-- A count that cannot be written stops nothing.
if redis.call('LREM', KEYS[1], '-1', ARGV[1]) == 0 then return 0 end
local pushed = redis.pcall('RPUSH', KEYS[2], unpack(ARGV, 4))
if type(pushed) == 'table' then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return pushed
end
redis.pcall('SADD', KEYS[3], ARGV[2])
-- A sub-queue that was empty meanwhile has lost its turn.
arrive(ARGV[2])
if ARGV[3] == '0' then return 1 end
redis.pcall('HINCRBY', KEYS[4], ARGV[2], -tonumber(ARGV[3]))
local blocks = redis.pcall('HINCRBY', KEYS[5], ARGV[2], -1)
if type(blocks) == 'number' and blocks <= 0 then
  redis.pcall('HDEL', KEYS[4], ARGV[2])
  redis.pcall('HDEL', KEYS[5], ARGV[2])
end
return 1
