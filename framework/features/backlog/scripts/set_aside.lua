-- Set a fetched job aside, in a list of its class beside its queue, and with it the next jobs of the class that wait in the queue: while
-- memory is short, a job that cannot start costs as much there as in the queue, and the jobs behind it get through.
-- KEYS    1 working list  2 the queue (LIST)  3 the list beside it, a sub-queue without a turn (parts/turns.lua)
--         4 set of queue names  5 names of the lists beside queues (SET)
-- ARGV    1 payload as fetched  2 name of the list  3 text that a payload of the class has  4 text of a job that has waited for a slot,
--         which stays  5 most jobs of the queue  6 what the fetched job holds (parts/release.lua)
-- RETURN  the number of jobs, 0 fenced: the process no longer owns the fetched job, and nothing was written
-- ERROR   the list is of another type: the job is back in the working list
-- COST    O(W + n)
-- CRASH   before: in the working list, and in the queue. after: in the list, the oldest at its right end, from which they return
--         (return_aside.lua). Bytes are freed before as many are written, so it passes at maxmemory. A job of another class that has the
--         text in its arguments comes back with the others.
if redis.call('LREM', KEYS[1], '-1', ARGV[1]) == 0 then return 0 end
local put = redis.pcall('LPUSH', KEYS[3], ARGV[1])
if type(put) == 'table' then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return put
end
redis.pcall('SADD', KEYS[4], ARGV[2])
redis.pcall('SADD', KEYS[5], ARGV[2])
release(ARGV[6])
local most, n = tonumber(ARGV[5]), 0
local next_jobs = redis.pcall('LRANGE', KEYS[2], -most, -1)
if next_jobs.err then return 1 end
for i = #next_jobs, 1, -1 do
  local data = next_jobs[i]
  if not string.find(data, ARGV[3], 1, true) or string.find(data, ARGV[4], 1, true) then break end
  n = n + 1
end
if n > 0 then redis.call('LPUSH', KEYS[3], unpack(redis.call('RPOP', KEYS[2], n))) end
return 1 + n
