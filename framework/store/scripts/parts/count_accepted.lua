-- Count the jobs that the push before this part writes, for a class with a limit of the jobs that are accepted and have not ended.
-- KEYS    those of the push
-- ARGV    those of the push, then one more (JSON): c class, n number of jobs, b bytes of each, j most jobs, m most bytes (or neither),
--         k number of the first key to which jobs go (all further ones do, too), s whether these are sorted sets,
--         d key that notes that this step was done, '' for none, x series that counts dropped jobs, '' where none is dropped
-- RETURN  as the push
-- ERROR   BACKLOGFULL jobs bytes free: the limit is reached, and only `free` of these jobs would fit; nothing was written.
--         Else as the push.
-- keys    those of parts/backlog_limit.lua, which stands before it
-- COST    O(1) beside the push
-- CRASH   before: neither jobs nor their count. after: both. How much the places have grown is counted, not what the call wants:
--         a duplicate, or a job that an earlier call has written, whose reply was lost, is not counted.
local counted = cjson.decode(ARGV[#ARGV])
ARGV[#ARGV] = nil

-- A job that comes to a sub-queue may move on, to its queue or to the sub-queue that many keys share (parts/turns.lua).
local places, last_queue = {}, nil
for i = counted.k, #KEYS do
  places[#places + 1] = KEYS[i]
  local queue = string.match(KEYS[i], '^([^~]*)~')
  if queue and queue ~= last_queue then
    last_queue = queue
    for _, name in ipairs({ '', '~', '~critical^', '~high^', '~low^' }) do places[#places + 1] = queue .. name end
  end
end

local function jobs_in_places()
  local found, seen = 0, {}
  for _, key in ipairs(places) do
    if not seen[key] then
      seen[key] = true
      local size = counted.s and redis.pcall('ZCARD', key) or redis.pcall('LLEN', key)
      found = found + (type(size) == 'number' and size or 0)
    end
  end
  return found
end

if counted.d == '' or redis.call('EXISTS', counted.d) == 0 then
  local jobs, bytes = accepted_jobs(counted.c)
  local free = counted.n
  if counted.j then free = math.min(free, counted.j - jobs) end
  if counted.m then free = math.min(free, math.floor((counted.m - bytes) / counted.b)) end
  if free < counted.n then
    free = math.max(0, free)
    -- Of several jobs some may still be written: the caller comes again with those.
    if counted.x ~= '' and free == 0 then redis.pcall('HINCRBY', 'aw:counters', counted.x, counted.n) end
    return redis.error_reply(string.format('BACKLOGFULL %d %d %d', jobs, bytes, free))
  end
end
local before = jobs_in_places()
local reply = push(KEYS, ARGV)
local written = jobs_in_places() - before
if written > 0 then count_accepted(counted.c, written, written * counted.b) end
return reply
