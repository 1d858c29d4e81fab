-- Take one job out of a block (wire/blocks.py), so that it can be found and dropped like any other: two blocks of its neighbours stay.
-- KEYS    1 the queue  2 jobs in blocks (HASH)  3 blocks (HASH)  4 a key that does not exist
-- ARGV    1 queue name  2 the block  3 the block of the newer jobs, '' for none  4 the job  5 the block of the older ones, '' for none
-- RETURN  1 done, 0 the block is not in the queue, and nothing was written
-- COST    O(elements before the block)
-- CRASH   before: the job is in the block. after: it is in the queue, at the same place.
-- At maxmemory Redis refuses no write of a script that has removed something.
local at = redis.call('LPOS', KEYS[1], ARGV[2])
if not at then return 0 end
redis.call('DEL', KEYS[4])
redis.pcall('HINCRBY', KEYS[2], ARGV[1], -1)
local blocks = -1
-- Beside the block, which is there once: jobs may be equal.
for _, side in ipairs({ 'BEFORE', 'AFTER' }) do
  local neighbours = ARGV[side == 'BEFORE' and 3 or 5]
  if neighbours ~= '' then
    redis.call('LINSERT', KEYS[1], side, ARGV[2], neighbours)
    blocks = blocks + 1
    if side == 'BEFORE' then at = at + 1 end
  end
end
redis.call('LSET', KEYS[1], at, ARGV[4])
local left = redis.pcall('HINCRBY', KEYS[3], ARGV[1], blocks)
if type(left) == 'number' and left <= 0 then
  redis.pcall('HDEL', KEYS[2], ARGV[1])
  redis.pcall('HDEL', KEYS[3], ARGV[1])
end
return 1
