-- The slots of a concurrency limit, and the jobs that wait for one. `base` is the limit's HASH and the prefix of its other keys:
-- base            HASH  limit (the application's, as a process evaluated it last; 0 none, below 0 pause), share (most of one scope),
--                       current and current_until (throttled), override and override_until ('' for ever; the operators').
--                       A limit that begins with + holds on all shards together: this shard uses its portion (portion,
--                       portion_version) of it, written as SLOTS or SLOTS UNTIL (seconds of Redis's clock), and no slot without one
-- base:running    ZSET  member -> when the slot expires (seconds of Redis's clock). A member is "IDENTITY JID", or
--                       " JID" for a job that was released and has not started: a reservation
-- base:waiting:S  ZSET  job of scope S -> since when; a job is its ticket, a line of JSON [queue, jid, lock
--                       if it has one (parts/lock_ticket.lua)], and its payload's bytes
--                       or a block of them (wire/blocks.py), which a process unpacks
-- base:turns      ZSET  scope with waiting jobs that may get a slot -> its turn; base:full SET of scopes that have their share
-- base:scopes     HASH  member -> its scope, and base:scope_slots HASH scope -> its slots; the scope '' is not counted
-- No function fails half way: a key of another type is left alone.
local RESERVED_S = 30
-- Waiting jobs that are taken out at once: each may be a block, which is large.
local AT_ONCE = 20

-- Return a limit as a number; nil for an invalid one.
local function read_limit(text)
  local limit = tonumber(text)
  return limit and math.abs(limit) <= 1000000000 and math.floor(limit) or nil
end

-- Return the limit wherever jobs run: the operators' override, else the application's limit, lowered by throttling; nil without any.
local function whole_limit(fields, now)
  local override = read_limit(fields[1])
  if override and (tonumber(fields[2]) or math.huge) > now then return override end
  local limit, current = read_limit(fields[3]), read_limit(fields[4])
  if limit and limit > 0 and current and (tonumber(fields[5]) or 0) > now then return math.min(limit, current) end
  return limit
end

-- Return whether a limit holds on all shards together.
local function is_shared(text)
  return text and string.byte(text) == 43
end

-- Return the limit on this shard: of a shared one no more than its portion, below 0 (a pause) while it has none.
local function effective_limit(fields, now)
  local limit = whole_limit(fields, now)
  if not limit or limit <= 0 or not is_shared(fields[3]) then return limit end
  local slots, till = string.match(fields[6] or '', '^(%d+) ?(%S*)$')
  slots = tonumber(slots) or 0
  if slots == 0 or (till ~= '' and (tonumber(till) or 0) < now) then return -1 end
  return math.min(limit, slots)
end

local function limit_of(base, now)
  local fields = redis.pcall('HMGET', base, 'override', 'override_until', 'limit', 'current', 'current_until', 'portion')
  return not fields.err and effective_limit(fields, now) or nil
end

local function running(base)
  local count = redis.pcall('ZCARD', base .. ':running')
  return type(count) == 'number' and count or 0
end

local function scope_is_full(base, scope)
  if scope == '' then return false end
  local share = tonumber(redis.pcall('HGET', base, 'share')) or 0
  return share > 0 and (tonumber(redis.pcall('HGET', base .. ':scope_slots', scope)) or 0) >= share
end

-- Return the turn after all scopes that have one.
local function next_turn(base)
  local last = redis.pcall('ZREVRANGE', base .. ':turns', 0, 0, 'WITHSCORES')
  return string.format('%.0f', (tonumber(last[2]) or 0) + 1)
end

-- Give a scope that had its share a turn again: a scope is always in one of the two sets.
local function give_turn(base, scope)
  if type(redis.pcall('ZADD', base .. ':turns', next_turn(base), scope)) == 'number' then
    redis.pcall('SREM', base .. ':full', scope)
  end
end

-- Return the error, if any: a slot that is not written limits no job. Whole seconds: Redis reads those of a small set without
-- parsing text.
local function take_slot(base, member, expiry, scope)
  local put = redis.pcall('ZADD', base .. ':running', string.format('%.0f', expiry), member)
  if type(put) == 'table' then return put end
  if scope == '' then return nil end
  local noted = redis.pcall('HSET', base .. ':scopes', member, scope)
  if noted == 1 then noted = redis.pcall('HINCRBY', base .. ':scope_slots', scope, 1) end
  return type(noted) == 'table' and noted or nil
end

-- Take slots for members of one scope, as take_slot.
local function take_slots(base, members, expiry, scope)
  if scope ~= '' or #members < 2 then
    for _, member in ipairs(members) do take_slot(base, member, expiry, scope) end
    return
  end
  local slots = {}
  for i, member in ipairs(members) do slots[2 * i - 1], slots[2 * i] = string.format('%.0f', expiry), member end
  redis.pcall('ZADD', base .. ':running', unpack(slots))
end

-- Note that a member has no slot any more. Its scope may take one more then.
local function leave_scope(base, member)
  local scope = redis.pcall('HGET', base .. ':scopes', member)
  if type(scope) == 'string' then
    redis.pcall('HDEL', base .. ':scopes', member)
    local left = redis.pcall('HINCRBY', base .. ':scope_slots', scope, -1)
    if type(left) == 'number' and left <= 0 then redis.pcall('HDEL', base .. ':scope_slots', scope) end
    if redis.pcall('SISMEMBER', base .. ':full', scope) == 1 then give_turn(base, scope) end
  end
end

-- Free the member's slot; return whether it had one.
local function free_slot(base, member)
  if redis.pcall('ZREM', base .. ':running', member) ~= 1 then return false end
  leave_scope(base, member)
  return true
end

-- Free the slots of members; return how many had one.
local function free_slots(base, members)
  local freed = redis.pcall('ZREM', base .. ':running', unpack(members))
  if type(freed) ~= 'number' then return 0 end
  if freed > 0 and redis.pcall('EXISTS', base .. ':scopes') ~= 0 then
    for _, member in ipairs(members) do leave_scope(base, member) end
  end
  return freed
end

-- Free expired reservations, and expired slots, the latter only while heartbeats arrive without a gap (inspect_dead.lua): after an
-- outage the processes need the period of a record, and some time more, to renew their slots.
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

-- Take out the oldest waiting jobs of a scope, at most `most`, with reserved slots where they need them: { queue, payload, lock }, for
-- `go_back`. No step in between may fail. A job that cannot go to its queue (the key is of another type) goes behind the others.
-- A block stays, and all behind it; the second value says so.
local function next_waiting(base, scope, now, reserve, most)
  local waiting, found, members, is_list = base .. ':waiting:' .. scope, {}, {}, {}
  local popped, blocked = redis.pcall('ZPOPMIN', waiting, math.min(most, AT_ONCE)), false
  for i = 1, #popped, 2 do
    -- A ticket begins with a bracket and a quotation mark, a block with a space behind its brace.
    if string.byte(popped[i], 2) == 32 then
      for j = i, #popped, 2 do redis.call('ZADD', waiting, popped[j + 1], popped[j]) end
      blocked = true
      break
    end
    local line = string.find(popped[i], '\n', 1, true) or 0
    local read, ticket = pcall(cjson.decode, string.sub(popped[i], 1, line - 1))
    local queue = read and type(ticket) == 'table' and type(ticket[1]) == 'string' and ticket[1]
    if queue and is_list[queue] == nil then is_list[queue] = type(redis.pcall('LLEN', 'queue:' .. queue)) == 'number' end
    if queue and is_list[queue] then
      found[#found + 1] = { queue, string.sub(popped[i], line + 1), ticket[3] }
      members[#members + 1] = ' ' .. tostring(ticket[2])
    else
      redis.call('ZADD', waiting, string.format('%.6f', now), popped[i])
    end
  end
  if reserve then take_slots(base, members, now + RESERVED_S, scope) end
  if redis.pcall('ZCARD', waiting) == 0 then
    redis.pcall('ZREM', base .. ':turns', scope)
  elseif most == 1 then
    redis.pcall('ZADD', base .. ':turns', next_turn(base), scope)
  end
  return found, blocked
end

-- Push jobs, oldest first, back to their queues: those with a slot to the right end, to run next; the others to the left end.
local function go_back(jobs, reserved)
  local queues, order = {}, {}
  for i = 1, #jobs do
    local job = reserved and jobs[#jobs + 1 - i] or jobs[i]
    if not queues[job[1]] then
      queues[job[1]] = {}
      order[#order + 1] = job[1]
    end
    table.insert(queues[job[1]], job[2])
  end
  for _, queue in ipairs(order) do
    -- Where an ACL refuses one of the two, the wrong end is better than losing the jobs.
    local put = redis.pcall(reserved and 'RPUSH' or 'LPUSH', 'queue:' .. queue, unpack(queues[queue]))
    if type(put) == 'table' then redis.call(reserved and 'LPUSH' or 'RPUSH', 'queue:' .. queue, unpack(queues[queue])) end
  end
  for _, queue in ipairs(order) do
    redis.pcall('SADD', 'queues', queue)
    arrive(queue)
  end
  for _, job in ipairs(jobs) do wake_lock(job[3]) end
end

-- Assign free slots to waiting jobs, the scopes in turn, at most `most`; return their number. Without a limit they need no slots.
local function hand_over(base, now, most)
  local turns = base .. ':turns'
  local waiting_scopes = redis.pcall('ZCARD', turns)
  if waiting_scopes == 0 then return 0 end
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
      -- The jobs of a limit without scopes need no turns.
      local count = waiting_scopes == 1 and scope == '' and free - #handed or 1
      local found, blocked = next_waiting(base, scope, now, limit > 0, count)
      for _, job in ipairs(found) do handed[#handed + 1] = job end
      -- Blocks are large: few are moved.
      if blocked then tries = waiting_scopes == 1 and 0 or tries - 10 end
    end
    tries = tries - 1
  end
  go_back(handed, limit > 0)
  if redis.pcall('ZCARD', turns) == 0 and redis.pcall('SCARD', base .. ':full') == 0 then
    redis.pcall('SREM', 'aw:limits:waiting', base)
  end
  return #handed
end
