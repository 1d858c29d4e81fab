-- Put the deferred jobs of a block (fetch/deferred_blocks.py) into the schedule set. A block that cannot be read moves to the dead set.
-- KEYS    1 schedule set  2 names of blocks (ZSET)  3 their bytes (HASH)  4 jobs beyond the members of sets (HASH)  5 dead set
--         6 counters (HASH)  7 a key that does not exist
-- ARGV    1 name of the block  2 its id  3 its score  4 number of its jobs  5 entry of the dead set, '' for a block that can be read
--         6 series in which that is counted  then per job its score, its member
-- RETURN  1 done, 0 the block is not there with this score: another process has unpacked it, or moved its time; nothing was written
-- COST    O(jobs * log N)
-- CRASH   before: the jobs are in the block. after: they are in the schedule set, and the block is gone. The ZSCORE decides: any number
--         of processes may do this at once.
-- A count that cannot be written stops nothing. At maxmemory Redis refuses no write of a script that has removed something.
local due = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not due or tonumber(due) ~= tonumber(ARGV[3]) then return 0 end
redis.call('DEL', KEYS[7])
if ARGV[5] ~= '' then
  redis.call('ZADD', KEYS[5], string.format('%.0f', redis_now()), ARGV[5])
  redis.pcall('HINCRBY', KEYS[6], ARGV[6], 1)
elseif ARGV[7] then
  -- A job that another program has put there again keeps the sooner time.
  redis.call('ZADD', KEYS[1], 'LT', unpack(ARGV, 7))
end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[2])
local beyond = redis.pcall('HINCRBY', KEYS[4], KEYS[2], 1 - tonumber(ARGV[4]))
if type(beyond) == 'number' and beyond <= 0 then redis.pcall('HDEL', KEYS[4], KEYS[2]) end
return 1
