-- Replace neighbours in a set of held jobs by a block of them (wire/blocks.py), which has the score of the oldest.
-- KEYS    1 the set  2 jobs beyond the members of sets (HASH)  3 a key that does not exist
-- ARGV    1 the block  then per job, the oldest first: its score, its member
-- RETURN  1 packed, 0 the jobs are not neighbours in the set with these scores, and nothing was written
-- COST    O(jobs * log N)
-- CRASH   before: the jobs are in the set. after: they are in the block, at the same place of the set.
-- Every job is compared before the first write, and the block is in the set before its jobs leave. At maxmemory Redis refuses no write
-- of a script that has removed something.
local set, jobs = KEYS[1], (#ARGV - 1) / 2
local first = redis.call('ZRANK', set, ARGV[3])
if not first then return 0 end
local found = redis.call('ZRANGE', set, first, first + jobs - 1, 'WITHSCORES')
for i = 1, 2 * jobs, 2 do
  if found[i] ~= ARGV[i + 2] or tonumber(found[i + 1]) ~= tonumber(ARGV[i + 1]) then return 0 end
end
redis.call('DEL', KEYS[3])
redis.call('HINCRBY', KEYS[2], set, jobs - 1)
redis.call('ZADD', set, ARGV[2], ARGV[1])
-- By rank, which is cheaper. The block is among them, or beside them: its score is that of the oldest, which others may have too.
local block, last = redis.call('ZRANK', set, ARGV[1]), first + jobs
redis.call('ZREMRANGEBYRANK', set, math.max(block, first) + 1, last)
if block > first then redis.call('ZREMRANGEBYRANK', set, first, math.min(block, last) - 1) end
return 1
