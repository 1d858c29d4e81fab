-- Push jobs to the schedule set, each due at a time.
-- KEYS    1 schedule set
-- ARGV    1 key that notes that this step was done, '' for none  2 for how many milliseconds
--         3 statuses of tracked jobs (JSON: arguments of SET), '' for none  then per job its time in seconds and its payload (1,000 at most)
-- RETURN  1 written; the same of a step that was done before, by a call whose reply was lost
-- ERROR   the server is full (this is a push, and may be refused), or the set's key is of another type: nothing was written
-- COST    O(n log N)
-- CRASH   before: nothing. after: all jobs are in the set.
if ARGV[1] ~= '' and redis.call('EXISTS', ARGV[1]) == 1 then return 1 end
local added = redis.pcall('ZADD', KEYS[1], unpack(ARGV, 4))
if type(added) == 'table' then return added end
if ARGV[3] ~= '' then
  for _, status in ipairs(cjson.decode(ARGV[3])) do redis.pcall('SET', unpack(status)) end
end
if ARGV[1] ~= '' then redis.pcall('SET', ARGV[1], 1, 'PX', ARGV[2]) end
return 1
