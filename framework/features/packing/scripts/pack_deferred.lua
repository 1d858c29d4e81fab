-- Move deferred jobs from the schedule set to a block of them (fetch/deferred_blocks.py), which has the score of the first one.
-- KEYS    1 schedule set  2 names of blocks (ZSET)  3 their bytes (HASH)  4 jobs beyond the members of sets (HASH)
--         5 a key that does not exist
-- ARGV    1 name of the block  2 its id  3 its bytes  then per job, the first due first: its score, its member
-- RETURN  1 packed, 0 a job is not in the schedule set with this score, and nothing was written
-- COST    O(jobs * log N)
-- CRASH   before: the jobs are in the schedule set. after: they are in the block.
-- Every job is compared before the first write, and the block is there before its jobs leave. At maxmemory Redis refuses no write of a
-- script that has removed something.
local members, scores = {}, {}
for i = 4, #ARGV, 2 do
  scores[#scores + 1], members[#members + 1] = tonumber(ARGV[i]), ARGV[i + 1]
end
for i, score in ipairs(redis.call('ZMSCORE', KEYS[1], unpack(members))) do
  if tonumber(score or '') ~= scores[i] then return 0 end
end
redis.call('DEL', KEYS[5])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
redis.call('HINCRBY', KEYS[4], KEYS[2], #members - 1)
redis.call('ZREM', KEYS[1], unpack(members))
return 1
