-- arrive(name): if `name` is a sub-queue (NAME~KEY), note that it has jobs, and wake a process (ring). Call it after the jobs are in.
-- turns(): makes the functions below, which few calls of a script need, and returns the following ones.
-- arrive_all(names): as arrive of several sub-queues of one queue.
-- ring(queue): while sub-queues have jobs, the queue's own list has one: that wakes the process which waits there. So a list that is
--         empty gets the next job of the turns.
-- take_jobs(queue, most): take the next jobs of the queue and its sub-queues, the first to start first; or the error of the queue's
--         own list. The caller puts them somewhere. Returns also the blocks (wire/blocks.py) that are next in their sub-queues, and
--         stay there: their keys keep a turn, and the caller unpacks them. Jobs of other keys go on.
-- A KEY begins with the level of its jobs (`high^KEY`), or has none: normal, as the jobs of the queue's own list.
-- aw:turns:NAME  ZSET: keys of the sub-queues with jobs; score: the number of the turn, within the range of scores of its level. A key
--         that had its turn gets the last one of its level.
-- aw:levels:NAME HASH: `next`, the level of the next job of the queue's own list where `ring` has put it there and it is not normal;
--         `starts`, the number of jobs taken while levels differ. A lost value changes the order of one job. Deleted with the last turn.
-- COST    O(log K) for each job: K sub-queues with jobs
-- CRASH   as the step that they belong to. The keys are made here, as a shard is one server.
-- More than 10,000 sub-queues at a time are too many to list: the jobs of further keys share the sub-queue of their level: `NAME~`,
-- `NAME~high^`.
local MOST_TURNS = 10000
local LEVEL_SIZE = 17592186044416
local LEVELS = { critical = -2, high = -1, low = 1 }
-- Each tenth job that starts is of another level in turn, so that no level waits for ever.
local LEVEL_SHARE = 10
-- So many sub-queues that begin with blocks are passed over by one call.
local MOST_BLOCKS = 100
local blocks, blocked_keys = {}, {}

local function is_packed(element)
  return string.byte(element, 2) == 32 and string.sub(element, 1, 22) == '{ "class":"aw.Packed",'
end

local function level_of(key)
  return LEVELS[string.match(key, '^(%a+)%^')] or 0
end

-- Return the first score of a level, as text that has all digits.
local function first_score(level)
  return string.format('%.0f', level * LEVEL_SIZE)
end

-- Return the score of the last turn of a level.
local function last_turn(turns, level)
  local last = redis.pcall(
    'ZREVRANGEBYSCORE', turns, '(' .. first_score(level + 1), first_score(level), 'WITHSCORES', 'LIMIT', 0, 1
  )
  return tonumber(last[2]) or level * LEVEL_SIZE
end

-- Give a key the last turn of its level, if it has none. Other errors than that of an ACL cannot come: it loses the turn, not the job.
local function add_turn(turns, key)
  redis.pcall('ZADD', turns, 'NX', string.format('%.0f', last_turn(turns, level_of(key)) + 1), key)
end

-- Give the keys whose next jobs are in blocks their turns back. Returns these blocks.
local function end_call(turns)
  local found = blocks
  for _, key in ipairs(blocked_keys) do add_turn(turns, key) end
  blocks, blocked_keys = {}, {}
  return found
end

-- Take the oldest job of a key whose turn was taken; nil where it has none, or where that one is in a block.
local function job_of_key(queue, turns, key)
  local name = queue .. '~' .. key
  local data = redis.pcall('RPOP', 'queue:' .. name)
  if type(data) == 'string' and is_packed(data) then
    redis.call('RPUSH', 'queue:' .. name, data)
    blocks[#blocks + 1], blocked_keys[#blocked_keys + 1] = data, key
    return nil
  end
  if type(data) == 'string' and redis.pcall('EXISTS', 'queue:' .. name) == 1 then
    add_turn(turns, key)
  else
    redis.pcall('SREM', 'queues', name)
  end
  return type(data) == 'string' and data or nil
end

-- Take the next job of the sub-queues; nil where none has jobs. Returns its level too.
local function next_job(queue)
  local turns = 'aw:turns:' .. queue
  while #blocks < MOST_BLOCKS do
    local turn = redis.pcall('ZPOPMIN', turns)
    -- A key of another type holds no turns.
    if turn.err or not turn[1] then return nil end
    local data = job_of_key(queue, turns, turn[1])
    if data then return data, level_of(turn[1]) end
  end
  return nil
end

local function ring(queue)
  if redis.call('EXISTS', 'queue:' .. queue) == 1 then return end
  local data, level = next_job(queue)
  end_call('aw:turns:' .. queue)
  if not data then
    redis.pcall('DEL', 'aw:levels:' .. queue)
    return
  end
  redis.call('LPUSH', 'queue:' .. queue, data)
  redis.pcall('SADD', 'queues', queue)
  if level == 0 then
    redis.pcall('HDEL', 'aw:levels:' .. queue, 'next')
  else
    redis.pcall('HSET', 'aw:levels:' .. queue, 'next', level)
  end
end

-- Take jobs while the levels differ: the highest level first, and each tenth time another one in turn.
local function jobs_by_level(queue, most)
  local own, turns, state_key = 'queue:' .. queue, 'aw:turns:' .. queue, 'aw:levels:' .. queue
  local state = redis.pcall('HMGET', state_key, 'next', 'starts')
  local own_level, starts = tonumber(state[1]) or 0, tonumber(state[2]) or 0
  local own_is_empty, jobs = false, {}

  local function own_jobs(count)
    local found = not own_is_empty and redis.pcall('RPOP', own, own_level == 0 and count or 1) or {}
    own_level, own_is_empty = 0, not found[1]
    return found
  end

  -- Return jobs of one place, the first to start first; none when nothing waits.
  local function first_jobs(count)
    while #blocks < MOST_BLOCKS do
      local first = redis.pcall('ZRANGE', turns, 0, 0, 'WITHSCORES')
      local level = first[2] and math.floor(tonumber(first[2]) / LEVEL_SIZE)
      local found
      if not own_is_empty and (not level or own_level <= level) then
        found = own_jobs(count)
      elseif not level then
        return {}
      elseif redis.pcall('ZCOUNT', turns, first_score(level), '(' .. first_score(level + 1)) == 1 then
        -- The only key of its level keeps its turn.
        local name = queue .. '~' .. first[1]
        found = redis.pcall('RPOP', 'queue:' .. name, count) or {}
        for i, data in ipairs(found) do
          if is_packed(data) then
            for j = #found, i, -1 do redis.call('RPUSH', 'queue:' .. name, found[j]) end
            found = { unpack(found, 1, i - 1) }
            blocks[#blocks + 1], blocked_keys[#blocked_keys + 1] = data, first[1]
            redis.pcall('ZREM', turns, first[1])
            break
          end
        end
        if redis.pcall('EXISTS', 'queue:' .. name) == 0 or found.err then
          redis.pcall('SREM', 'queues', name)
          if redis.pcall('ZREM', turns, first[1]) ~= 1 then return found end
        end
      elseif redis.pcall('ZREM', turns, first[1]) == 1 then
        found = { job_of_key(queue, turns, first[1]) }
      else
        return {}
      end
      if found[1] then return found end
    end
    return {}
  end

  local function job_of_level(level)
    local data = own_level == level and own_jobs(1)[1]
    while not data and #blocks < MOST_BLOCKS do
      local key = redis.pcall('ZRANGEBYSCORE', turns, first_score(level), '(' .. first_score(level + 1), 'LIMIT', 0, 1)[1]
      if not key or redis.pcall('ZREM', turns, key) ~= 1 then return nil end
      data = job_of_key(queue, turns, key)
    end
    return data or nil
  end

  while #jobs < most do
    local passed, found = starts % LEVEL_SHARE, {}
    if passed == LEVEL_SHARE - 1 then
      -- The turn of another level: that one is the first of the four.
      local turn = (starts + 1) / LEVEL_SHARE
      for i = 0, 3 do
        if not found[1] then found = { job_of_level((turn + i) % 4 - 2) } end
      end
    else
      found = first_jobs(math.min(most - #jobs, LEVEL_SHARE - 1 - passed))
    end
    if not found[1] then break end
    for _, data in ipairs(found) do jobs[#jobs + 1] = data end
    starts = (starts + #found) % (4 * LEVEL_SHARE)
  end
  if state[1] and own_level == 0 then redis.pcall('HDEL', state_key, 'next') end
  redis.pcall('HSET', state_key, 'starts', starts)
  return jobs
end

local function take_jobs(queue, most)
  local turns = 'aw:turns:' .. queue
  local first = redis.pcall('ZRANGE', turns, 0, 0, 'WITHSCORES')
  if first[2] then
    local last = redis.pcall('ZRANGE', turns, -1, -1, 'WITHSCORES')
    if tonumber(first[2]) < 0 or tonumber(last[2]) >= LEVEL_SIZE then
      return jobs_by_level(queue, most), end_call(turns)
    end
  end
  local jobs = redis.pcall('RPOP', 'queue:' .. queue, most) or {}
  while first[2] and not jobs.err and #jobs < most do
    local data = next_job(queue)
    if not data then break end
    jobs[#jobs + 1] = data
  end
  return jobs, end_call(turns)
end

-- Move the jobs of a sub-queue to another list, the oldest first.
local function move_jobs(name, list)
  while redis.call('LMOVE', 'queue:' .. name, list, 'RIGHT', 'LEFT') do end
  redis.pcall('SREM', 'queues', name)
end

-- Note that a sub-queue has jobs (arrive).
local function enter_turns(name)
  local queue, key = string.match(name, '^([^~]*)~(.*)$')
  local turns = 'aw:turns:' .. queue
  local many = redis.pcall('ZCARD', turns)
  if type(many) == 'table' then
    -- A key of another type: without turns the jobs wait in the queue itself.
    move_jobs(name, 'queue:' .. queue)
    return redis.pcall('SADD', 'queues', queue)
  end
  local shared = string.match(key, '^%a+%^') or ''
  if many >= MOST_TURNS and key ~= shared and not redis.call('ZSCORE', turns, key) then
    move_jobs(name, 'queue:' .. queue .. '~' .. shared)
    key = shared
    redis.pcall('SADD', 'queues', queue .. '~' .. key)
  end
  add_turn(turns, key)
  ring(queue)
end

local function arrive_all(names)
  local queue = string.match(names[1], '^([^~]*)~')
  local turns = 'aw:turns:' .. queue
  local many = names[2] and redis.pcall('ZCARD', turns)
  if type(many) ~= 'number' or many + #names >= MOST_TURNS then
    for _, name in ipairs(names) do enter_turns(name) end
    return
  end
  local last, added = {}, { 'NX' }
  for _, name in ipairs(names) do
    local key = string.sub(name, #queue + 2)
    local level = level_of(key)
    last[level] = (last[level] or last_turn(turns, level)) + 1
    added[#added + 1] = string.format('%.0f', last[level])
    added[#added + 1] = key
  end
  redis.pcall('ZADD', turns, unpack(added))
  ring(queue)
end
