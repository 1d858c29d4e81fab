-- Replace neighbouring jobs of a queue by a block of them (wire/blocks.py), or add them to the block beside them.
-- KEYS    1 the queue  2 jobs in blocks (HASH)  3 blocks (HASH)  4 a key that does not exist
-- ARGV    1 queue name  2 most elements from the left end to look through  3 most elements that may leave and return; below 0: none
--         4 the block  5 the block that it replaces, '' for none: behind the jobs, or before them if no element may leave
--         then the jobs that are not in blocks, the newest first
-- RETURN  1 packed, 0 the jobs are not in the queue in this order, or not beside that block, or not near enough, and nothing was written
-- COST    O(distance from the left end + jobs); if no element may leave, jobs * nodes of the list up to there. Its caller chooses the jobs.
-- CRASH   before: the jobs are in the queue, beside the block. after: they are in it, at the same place of the queue.
-- Every job is compared before the first write. At maxmemory Redis refuses no write of a script that has removed something.
local queue, block, old, first = KEYS[1], ARGV[4], ARGV[5], 5
local jobs = #ARGV - first
local at = redis.call('LPOS', queue, ARGV[first + 1], 'MAXLEN', ARGV[2])
if not at then return 0 end
local most_moved = tonumber(ARGV[3])
local is_near = most_moved >= 0
if is_near and at > most_moved then return 0 end
if old ~= '' and redis.call('LINDEX', queue, is_near and at + jobs or at - 1) ~= old then return 0 end
local start = is_near and 0 or at
local found = redis.call('LRANGE', queue, start, at + jobs - 1)
for i = 1, jobs do
  if found[at - start + i] ~= ARGV[first + i] then return 0 end
end
redis.call('DEL', KEYS[4])
redis.call('HINCRBY', KEYS[2], ARGV[1], jobs)
if old == '' then redis.call('HINCRBY', KEYS[3], ARGV[1], 1) end
if is_near then
  local newer = { block }
  for i = at, 1, -1 do newer[#newer + 1] = found[i] end
  redis.call('LTRIM', queue, at + jobs + (old == '' and 0 or 1), -1)
  redis.call('LPUSH', queue, unpack(newer))
else
  -- Redis removes elements of the middle by their value alone: all get the same one, which no job has.
  local gone, kept = 'packed ' .. string.sub(block, 1, 200), old == '' and 1 or 0
  redis.call('LSET', queue, at - 1 + kept, block)
  for i = kept, jobs - 1 do redis.call('LSET', queue, at + i, gone) end
  if jobs > kept then redis.call('LREM', queue, jobs - kept, gone) end
end
return 1
