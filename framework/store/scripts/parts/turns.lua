-- arrive(name): note that the sub-queue `name` (NAME~KEY) has jobs, and wake a process (ring). Call it after the jobs are in.
-- ring(queue): while sub-queues have jobs, the queue's own list has one: that wakes the process which waits there. So a list that is
--         empty gets the next job of the turns.
-- next_turn(queue): take the next job of the sub-queues, which have turns; nil where none has jobs. The caller puts the job somewhere.
-- aw:turns:NAME  ZSET: keys of the sub-queues with jobs; score: the number of the turn. A key that had its turn gets the last one.
-- COST    O(log K): K sub-queues with jobs
-- CRASH   as the step that they belong to. The keys are made here, as a shard is one server.
-- More than 10,000 sub-queues at a time are too many to list: the jobs of further keys share the sub-queue `NAME~`.
local function last_turn(turns)
  local last = redis.call('ZRANGE', turns, -1, -1, 'WITHSCORES')
  return tonumber(last[2] or '0') or 0
end

local function next_turn(queue)
  local turns = 'aw:turns:' .. queue
  while true do
    local turn = redis.pcall('ZPOPMIN', turns)
    -- A key of another type holds no turns.
    if turn.err or not turn[1] then return nil end
    local name = queue .. '~' .. turn[1]
    local data = redis.pcall('RPOP', 'queue:' .. name)
    if type(data) == 'string' then
      if redis.call('EXISTS', 'queue:' .. name) == 1 then
        redis.call('ZADD', turns, last_turn(turns) + 1, turn[1])
      else
        redis.pcall('SREM', 'queues', name)
      end
      return data
    end
    redis.pcall('SREM', 'queues', name)
  end
end

local function ring(queue)
  if redis.call('EXISTS', 'queue:' .. queue) == 1 then return end
  local data = next_turn(queue)
  if data then
    redis.call('LPUSH', 'queue:' .. queue, data)
    redis.pcall('SADD', 'queues', queue)
  end
end

-- Move the jobs of a sub-queue to another list, the oldest first.
local function move_jobs(name, list)
  while redis.call('LMOVE', 'queue:' .. name, list, 'RIGHT', 'LEFT') do end
  redis.pcall('SREM', 'queues', name)
end

local function arrive(name)
  local queue, key = string.match(name, '^([^~]*)~(.*)$')
  if not queue then return end
  local turns = 'aw:turns:' .. queue
  local many = redis.pcall('ZCARD', turns)
  if type(many) == 'table' then
    -- A key of another type: without turns the jobs wait in the queue itself.
    move_jobs(name, 'queue:' .. queue)
    return redis.pcall('SADD', 'queues', queue)
  end
  if many >= 10000 and key ~= '' and not redis.call('ZSCORE', turns, key) then
    move_jobs(name, 'queue:' .. queue .. '~')
    key = ''
    redis.pcall('SADD', 'queues', queue .. '~')
  end
  redis.call('ZADD', turns, 'NX', last_turn(turns) + 1, key)
  ring(queue)
end

