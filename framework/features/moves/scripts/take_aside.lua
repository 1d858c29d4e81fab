-- Take the oldest jobs that were set aside (backlog/set_aside.lua): those that leave the shard, in their order; the others go behind all.
-- KEYS    1 the list beside the queue  2 list of the jobs that leave the queue  3 set of queue names  4 names of the lists beside queues
-- ARGV    1 name of the list beside the queue  2 number of jobs n  then the n jobs as they were read, oldest first  then n words: 1 leaves
-- RETURN  n, or 0: the list's right end is not what was read (another process has returned jobs), and nothing was moved
-- ERROR   the list of those that leave is of another type, or may not be written: nothing was moved
-- COST    O(n), from the ends of lists
-- CRASH   before: beside the queue. after: in the list, and `page.lua` or `restore.lua` goes on, the latter to the queue; or beside it.
-- SREM first, of a name that does not exist: it is allowed at maxmemory, and lets LPUSH pass.
local n, leave, stay = tonumber(ARGV[2]), {}, {}
local there = redis.call('LRANGE', KEYS[1], -n, -1)
for i = 1, n do
  if there[n + 1 - i] ~= ARGV[2 + i] then return 0 end
  table.insert(ARGV[2 + n + i] == '1' and leave or stay, ARGV[2 + i])
end
redis.call('SREM', KEYS[4], '')
if leave[1] then redis.call('LPUSH', KEYS[2], unpack(leave)) end
redis.call('LTRIM', KEYS[1], 0, -n - 1)
if stay[1] then redis.call('LPUSH', KEYS[1], unpack(stay)) end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SREM', KEYS[3], ARGV[1])
  redis.call('SREM', KEYS[4], ARGV[1])
end
return n
