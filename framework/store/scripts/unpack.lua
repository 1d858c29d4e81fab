-- Put the jobs of a block (wire/blocks.py) in its place. A block that cannot be read moves to the dead set.
-- KEYS    1 the queue, or the list where it was set aside  2 jobs in blocks (HASH)  3 blocks (HASH)  4 dead set  5 counters (HASH)
--         6 a key that does not exist
-- ARGV    1 queue name  2 the block  3 number of its jobs  4 number of elements behind it, at the right end (2,000 at most)
--         5 entry of the dead set, '' for a block that can be read  6 series in which that is counted  then the jobs, the newest first
-- RETURN  1 done, 0 the block is not there: another process has unpacked it, or elements have arrived or left
-- COST    O(jobs + elements behind the block)
-- CRASH   before: the jobs are in the block. after: they are in the list, and the block is gone. The LINDEX that finds the block decides:
--         any number of processes may do this at once.
-- A count that cannot be written stops nothing. At maxmemory Redis refuses no write of a script that has removed something.
local behind, entry = tonumber(ARGV[4]), ARGV[5]
if behind > 2000 or redis.call('LINDEX', KEYS[1], -1 - behind) ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[6])
redis.pcall('HINCRBY', KEYS[2], ARGV[1], -tonumber(ARGV[3]))
local blocks = redis.pcall('HINCRBY', KEYS[3], ARGV[1], -1)
if type(blocks) == 'number' and blocks <= 0 then
  redis.pcall('HDEL', KEYS[2], ARGV[1])
  redis.pcall('HDEL', KEYS[3], ARGV[1])
end
if entry ~= '' then
  redis.call('ZADD', KEYS[4], string.format('%.0f', redis_now()), entry)
  redis.pcall('HINCRBY', KEYS[5], ARGV[6], 1)
end
local older = behind > 0 and redis.call('RPOP', KEYS[1], behind) or {}
redis.call('RPOP', KEYS[1])
if ARGV[7] then redis.call('RPUSH', KEYS[1], unpack(ARGV, 7)) end
local returning = {}
for i = #older, 1, -1 do returning[#returning + 1] = older[i] end
if returning[1] then redis.call('RPUSH', KEYS[1], unpack(returning)) end
-- Of a sub-queue: a process that waits for jobs sees them.
if KEYS[1] == 'queue:' .. ARGV[1] then arrive(ARGV[1]) end
return 1
