-- The slots of a concurrency limit, and who waits for one. `base` is the limit's HASH and the begin of its other keys:
-- base            HASH  limit (the application's, as a process evaluated it last; 0 none, below 0 pause), share (most of one scope),
--                       current and current_until (throttled), override and override_until ('' for ever; the operators')
-- base:running    ZSET  member -> when it is free again whatever happens (seconds of Redis's clock). A member is "IDENTITY JID", or
--                       " JID" for a job that was handed over and has not begun: a reservation
-- base:waiting:S  ZSET  job of scope S -> since when; a job is its ticket, a line of JSON [queue, jid, lock
--                       if it has one (parts/lock.lua)], and its payload's bytes
-- base:turns      ZSET  scope with waiting jobs that may have a slot -> its turn; base:full SET of those that have their share
-- base:scopes     HASH  member -> its scope, and base:held HASH scope -> its slots; the scope '' is not counted
-- Nothing here fails half way: what is of another type is left alone.
local RESERVED_S = 30

local function redis_now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- A limit that was written; nil for what is none.
local function read_limit(text)
  local limit = tonumber(text)
  return limit and math.abs(limit) <= 1000000000 and math.floor(limit) or nil
end

-- What holds now: the operators' word, else the application's, lowered by throttling. nil when nobody has said anything.
local function limit_of(base, now)
  local said = redis.pcall('HMGET', base, 'override', 'override_until', 'limit', 'current', 'current_until')
  if said.err then return nil end
  local override = read_limit(said[1])
  if override and (tonumber(said[2]) or math.huge) > now then return override end
  local limit, current = read_limit(said[3]), read_limit(said[4])
  if limit and limit > 0 and current and (tonumber(said[5]) or 0) > now then return math.min(limit, current) end
  return limit
end

local function running(base)
  local count = redis.pcall('ZCARD', base .. ':running')
  return type(count) == 'number' and count or 0
end

local function scope_is_full(base, scope)
  if scope == '' then return false end
  local share = tonumber(redis.pcall('HGET', base, 'share')) or 0
  return share > 0 and (tonumber(redis.pcall('HGET', base .. ':held', scope)) or 0) >= share
end

-- Behind every scope that has a turn.
local function next_turn(base)
  local last = redis.pcall('ZREVRANGE', base .. ':turns', 0, 0, 'WITHSCORES')
  return string.format('%.0f', (tonumber(last[2]) or 0) + 1)
end

-- A scope that had its share may have a turn again: it is always in one of the two.
local function give_turn(base, scope)
  if type(redis.pcall('ZADD', base .. ':turns', next_turn(base), scope)) == 'number' then
    redis.pcall('SREM', base .. ':full', scope)
  end
end

-- Returns the error, if any: a slot that is not written down limits no job.
local function take_slot(base, member, expiry, scope)
  local put = redis.pcall('ZADD', base .. ':running', string.format('%.6f', expiry), member)
  if type(put) == 'table' then return put end
  if scope == '' then return nil end
  local noted = redis.pcall('HSET', base .. ':scopes', member, scope)
  if noted == 1 then noted = redis.pcall('HINCRBY', base .. ':held', scope, 1) end
  return type(noted) == 'table' and noted or nil
end

-- Whether the member had a slot; its scope may have one more then.
local function free_slot(base, member)
  if redis.pcall('ZREM', base .. ':running', member) ~= 1 then return false end
  local scope = redis.pcall('HGET', base .. ':scopes', member)
  if type(scope) == 'string' then
    redis.pcall('HDEL', base .. ':scopes', member)
    local left = redis.pcall('HINCRBY', base .. ':held', scope, -1)
    if type(left) == 'number' and left <= 0 then redis.pcall('HDEL', base .. ':held', scope) end
    if redis.pcall('SISMEMBER', base .. ':full', scope) == 1 then give_turn(base, scope) end
  end
  return true
end

-- Drop reservations of jobs that did not come, and slots that nobody has renewed: of those only while everybody's beats come
-- through (inspect_dead.lua). After an outage who runs has had no chance to renew, and needs a record's period and some more to do it.
local STEADY_S = 18
local function free_expired(base, now)
  local expired = redis.pcall('ZRANGEBYSCORE', base .. ':running', '-inf', string.format('%.6f', now), 'LIMIT', 0, 100)
  if expired.err or not expired[1] then return 0 end
  local since, freed = redis.pcall('GET', 'aw:steady_since'), 0
  local steady = type(since) == 'string' and now - (tonumber(since) or now) >= STEADY_S
  for _, member in ipairs(expired) do
    if steady or string.sub(member, 1, 1) == ' ' then
      free_slot(base, member)
      freed = freed + 1
    end
  end
  return freed
end

-- Take the oldest waiting job of a scope out, with a slot of its own where it needs one: { queue, payload, lock }, for `go_back`,
-- before which nothing may fail.
-- One that cannot go to its queue (the key is of another type) steps aside, behind those that wait.
local function next_waiting(base, scope, now, reserve)
  local waiting = base .. ':waiting:' .. scope
  local popped = redis.pcall('ZPOPMIN', waiting)
  local found
  if popped[1] then
    local line = string.find(popped[1], '\n', 1, true) or 0
    local read, ticket = pcall(cjson.decode, string.sub(popped[1], 1, line - 1))
    local queue = read and type(ticket) == 'table' and ticket[1]
    if type(queue) == 'string' and type(redis.pcall('LLEN', 'queue:' .. queue)) == 'number' then
      if reserve then take_slot(base, ' ' .. tostring(ticket[2]), now + RESERVED_S, scope) end
      found = { queue, string.sub(popped[1], line + 1), ticket[3] }
    else
      redis.call('ZADD', waiting, string.format('%.6f', now), popped[1])
    end
  end
  if redis.pcall('ZCARD', waiting) == 0 then
    redis.pcall('ZREM', base .. ':turns', scope)
  else
    redis.pcall('ZADD', base .. ':turns', next_turn(base), scope)
  end
  return found
end

-- Jobs, oldest first, back to their queues: those with a slot to the right end, to run next; the others to where pushes go.
local function go_back(jobs, reserved)
  for i = 1, #jobs do
    local job = reserved and jobs[#jobs + 1 - i] or jobs[i]
    -- The wrong end is better than nowhere, where an ACL refuses one of the two.
    local put = redis.pcall(reserved and 'RPUSH' or 'LPUSH', 'queue:' .. job[1], job[2])
    if type(put) == 'table' then redis.call(reserved and 'LPUSH' or 'RPUSH', 'queue:' .. job[1], job[2]) end
  end
  for _, job in ipairs(jobs) do
    redis.pcall('SADD', 'queues', job[1])
    wake_lock(job[3])
  end
end

-- Hand free slots to jobs that wait, the scopes in turn, `most` at a time; return how many. Without a limit they need no slots.
local function hand_over(base, now, most)
  local turns = base .. ':turns'
  if redis.pcall('ZCARD', turns) == 0 then return 0 end
  local limit = limit_of(base, now)
  if not limit or limit < 0 then return 0 end
  local free = most
  if limit > 0 then free = math.min(most, limit - running(base)) end
  local handed, tries = {}, most + 10
  while #handed < free and tries > 0 do
    local scope = redis.pcall('ZRANGE', turns, 0, 0)[1]
    if not scope then break end
    if limit > 0 and scope_is_full(base, scope) then
      if type(redis.pcall('SADD', base .. ':full', scope)) == 'number' then
        redis.pcall('ZREM', turns, scope)
      else
        redis.pcall('ZADD', turns, next_turn(base), scope)
      end
    else
      handed[#handed + 1] = next_waiting(base, scope, now, limit > 0)
    end
    tries = tries - 1
  end
  go_back(handed, limit > 0)
  if redis.pcall('ZCARD', turns) == 0 and redis.pcall('SCARD', base .. ':full') == 0 then
    redis.pcall('SREM', 'aw:limits:waiting', base)
  end
  return #handed
end

