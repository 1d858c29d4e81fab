-- Replace neighbouring jobs of a queue by a block of them (wire/blocks.py).
-- KEYS    1 the queue  2 jobs in blocks (HASH)  3 blocks (HASH)  4 a key that does not exist
-- ARGV    1 queue name  2 most elements from the left end to look through  3 most elements that may leave and return; below 0: none
--         4 the block
--         then its jobs, the newest first
-- RETURN  1 packed, 0 the jobs are not in the queue in this order, or not near enough, and nothing was written
-- COST    O(distance from the left end + jobs); if no element may leave, jobs * nodes of the list up to there
-- CRASH   before: the jobs are in the queue. after: they are in the block, at the same place of the queue.
-- Every job is compared before the first write. At maxmemory Redis refuses no write of a script that has removed something.
local queue, block, first = KEYS[1], ARGV[4], 4
local jobs = #ARGV - first
local at = redis.call('LPOS', queue, ARGV[first + 1], 'MAXLEN', ARGV[2])
if not at then return 0 end
local most_moved = tonumber(ARGV[3])
local is_near = at <= most_moved
if not is_near and most_moved >= 0 then return 0 end
local start = is_near and 0 or at
local found = redis.call('LRANGE', queue, start, at + jobs - 1)
for i = 1, jobs do
  if found[at - start + i] ~= ARGV[first + i] then return 0 end
end
redis.call('DEL', KEYS[4])
redis.call('HINCRBY', KEYS[2], ARGV[1], jobs)
redis.call('HINCRBY', KEYS[3], ARGV[1], 1)
if is_near then
  local newer = { block }
  for i = at, 1, -1 do newer[#newer + 1] = found[i] end
  redis.call('LTRIM', queue, at + jobs, -1)
  redis.call('LPUSH', queue, unpack(newer))
else
  -- Redis removes elements of the middle by their value alone: all get the same one, which no job has.
  local gone = 'packed ' .. string.sub(block, 1, 200)
  redis.call('LSET', queue, at, block)
  for i = 1, jobs - 1 do redis.call('LSET', queue, at + i, gone) end
  if jobs > 1 then redis.call('LREM', queue, jobs - 1, gone) end
end
return 1
