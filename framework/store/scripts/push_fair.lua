-- Push jobs to a sub-queue (NAME~KEY), whose queue gives each of its sub-queues a turn.
-- KEYS    1 set of queue names  2 the sub-queue
-- ARGV    1 name of the sub-queue  2 key that notes that this step was done, '' for none  3 for how many milliseconds
--         4 statuses of tracked jobs (JSON: arguments of SET)  then the payloads, oldest first (1,000 at most)
-- RETURN  1 written; the same of a step that was done before, by a call whose reply was lost
-- ERROR   the server is full (this is a push, and may be refused), or the key is of another type: nothing was written
-- COST    O(n + log K): K sub-queues with jobs
-- CRASH   before: nothing. after: all jobs are in the sub-queue or in their queue, and their key has a turn.
if ARGV[2] ~= '' and redis.call('GET', ARGV[2]) then return 1 end
local put = redis.pcall('LPUSH', KEYS[2], unpack(ARGV, 5))
if type(put) == 'table' then return put end
-- A name that is missing in `queues` only hides the queue from Sidekiq's pages.
redis.pcall('SADD', KEYS[1], ARGV[1])
for _, status in ipairs(cjson.decode(ARGV[4])) do redis.pcall('SET', unpack(status)) end
arrive(ARGV[1])
if ARGV[2] ~= '' then redis.pcall('SET', ARGV[2], 1, 'PX', ARGV[3]) end
return 1
