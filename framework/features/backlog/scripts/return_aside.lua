-- Return the oldest jobs that were set aside to the right end of their queue, so that they run next.
-- KEYS    1 the list beside the queue  2 the queue (LIST)  3 set of queue names  4 names of the lists beside queues (SET)
-- ARGV    1 most jobs  2 name of the list  3 name of the queue
-- RETURN  { jobs returned, jobs left }; the queue is of another type: none are returned
-- COST    O(n)
-- CRASH   before: in the list. after: in the queue, in their order. Bytes are freed before as many are written.
local kind = redis.call('TYPE', KEYS[2]).ok
local jobs = (kind == 'list' or kind == 'none') and redis.pcall('RPOP', KEYS[1], ARGV[1]) or {}
if jobs.err then jobs = {} end
if jobs[1] then
  local newest_first = {}
  for i = #jobs, 1, -1 do newest_first[#newest_first + 1] = jobs[i] end
  redis.call('RPUSH', KEYS[2], unpack(newest_first))
  redis.pcall('SADD', KEYS[3], ARGV[3])
end
local left = redis.pcall('LLEN', KEYS[1])
if type(left) == 'table' then left = 0 end
if left == 0 then
  redis.pcall('SREM', KEYS[3], ARGV[2])
  redis.pcall('SREM', KEYS[4], ARGV[2])
end
return { #jobs, left }
