-- Push jobs to sub-queues (NAME~KEY) of one queue, which gives each of them a turn, or to the queue itself.
-- KEYS    1 set of queue names  2.. the sub-queues, 250 at most, or the queue
-- ARGV    1 key that notes that this step was done, '' for none  2 for how many milliseconds
--         3 statuses of tracked jobs (JSON: arguments of SET), '' for none
--         then per sub-queue its name and its number of jobs, then the payloads in the order of the sub-queues, oldest first
--         (1,000 at most)
-- RETURN  1 written; the same of a step that was done before, by a call whose reply was lost
-- ERROR   the server is full (this is a push, and may be refused), or the first key is of another type: nothing was written
-- COST    O(n + m log K): m sub-queues of the call, K with jobs
-- CRASH   before: nothing. after: all jobs are in their sub-queues or in their queue, and each key has a turn.
local done_key, many = ARGV[1], #KEYS - 1
if done_key ~= '' and redis.call('GET', done_key) then return 1 end
local names, first = {}, 4 + 2 * many
for i = 1, many do
  local count = tonumber(ARGV[3 + 2 * i])
  local put = redis.pcall('LPUSH', KEYS[1 + i], unpack(ARGV, first, first + count - 1))
  if type(put) == 'number' then
    names[#names + 1] = ARGV[2 + 2 * i]
  elseif i == 1 then
    return put
  else
    -- Its key is of another type. Lua does not roll back, so these jobs wait with those of the first one.
    redis.call('LPUSH', KEYS[2], unpack(ARGV, first, first + count - 1))
  end
  first = first + count
end
-- A name that is missing in `queues` only hides the queue from Sidekiq's pages.
redis.pcall('SADD', KEYS[1], unpack(names))
if ARGV[3] ~= '' then
  for _, status in ipairs(cjson.decode(ARGV[3])) do redis.pcall('SET', unpack(status)) end
end
if string.find(names[1], '~', 1, true) then turns().arrive_all(names) end
if done_key ~= '' then redis.pcall('SET', done_key, 1, 'PX', ARGV[2]) end
return 1
