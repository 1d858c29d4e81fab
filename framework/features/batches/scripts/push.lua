-- Write jobs of a batch and count them, in one step; create the batch first, where the call says so.
-- KEYS    1 the batch (HASH; parts/batch.lua has its other keys)  2 batches by expiry (ZSET)  3 guard of this write
--         4 set of queue names  5 schedule set  6.. per group its queue (any declared key for the schedule set)
-- ARGV    1 the write (JSON; features/batches/push.py: BatchWrite)  then the payloads of all groups, oldest first
-- RETURN  { 1, { { group, index (from 0), jid of the job that it duplicates }, ... } }: written, but for these duplicates
--         { 2 } a part of a workflow's step that was written before: nothing was written now
--         { 0 } no such batch, { -1 } it has succeeded, { -2 } it was cancelled, { -3 } its parent is unknown or has
--         succeeded, { -4 } its parent was cancelled, { -5, { class, jobs, bytes } } the backlog of a class is full: nothing was written
-- ERROR   the server is full (this is a push, and may be refused), or a queue's key is of another type: nothing was written
-- COST    O(n log N)
-- CRASH   before: nothing. after: all jobs at their places, counted. Called again with the same guard after a lost reply, it returns
--         the first reply and writes nothing. A part of a workflow's step is noted in the workflow in the same step, so that a
--         process that starts the step again, at any later time, writes only the missing parts.
local head = cjson.decode(ARGV[1])
local key, bid = KEYS[1], head.bid
local before = redis.call('GET', KEYS[3])
if before then return cjson.decode(before) end

local part = type(head.part) == 'table' and head.part or nil
local invalidated_at
if part then
  local workflow = redis.call('HMGET', part.workflow, 'ttl_s', 'cancelled_at', part.step .. ':written', 'invalidated_at')
  if not workflow[1] then return { 0 } end
  if workflow[2] then return { -2 } end
  if (tonumber(workflow[3]) or 0) >= part.number then return { 2 } end
  invalidated_at = workflow[4]
end

-- Return why no jobs may be added to a batch, nil if they may.
local function refusal(of)
  local fields = redis.call('HMGET', of, 'pending', 'success_at', 'cancelled_at')
  return not fields[1] and 0 or fields[2] and -1 or fields[3] and -2 or nil
end

local create = type(head.create) == 'table' and head.create or nil
local refused = refusal(key)
local is_new = create and refused == 0
if refused and not is_new then return { refused } end
if is_new and create.parent then
  local refused = refusal('aw:batch:' .. create.parent)
  if refused then return { refused == -2 and -4 or -3 } end
end
for _, request in ipairs(head.requests) do
  local fits, jobs, bytes = late().has_room(request)
  if not fits then return { -5, { request.c, string.format('%d', jobs), string.format('%d', bytes) } } end
end
for i, group in ipairs(head.groups) do
  local place = group.queue == '' and KEYS[5] or KEYS[5 + i]
  local kind = redis.call('TYPE', place).ok
  if kind ~= 'none' and kind ~= (group.queue == '' and 'zset' or 'list') then
    return redis.error_reply('WRONGTYPE the key ' .. place .. ' holds no jobs')
  end
end

local now, counted = redis_now(), 0
if is_new then
  -- A new batch is counted as it is made: mostly all of its jobs are written.
  for _, group in ipairs(head.groups) do counted = counted + group.n end
  local fields = { 'total', counted, 'pending', counted, 'ttl_s', head.ttl_s, 'created_at', string.format('%.6f', now) }
  for name, value in pairs(create) do
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if invalidated_at then
    fields[#fields + 1] = 'invalidated_at'
    fields[#fields + 1] = invalidated_at
  end
  redis.call('HSET', key, unpack(fields))
  if create.parent then
    redis.call('HINCRBY', 'aw:batch:' .. create.parent, 'children', 1)
    redis.call('SADD', 'aw:batch:' .. create.parent .. ':children', bid)
  end
  -- Names of batches that have expired are removed, a few at a time.
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 10)) do
    local left_s = redis.call('TTL', 'aw:batch:' .. other)
    if left_s < 0 then redis.call('ZREM', KEYS[2], other) else redis.call('ZADD', KEYS[2], now + left_s, other) end
  end
  redis.call('ZADD', KEYS[2], now + head.ttl_s, bid)
end
local owners, at, added, broken, last_due = {}, 1, 0, nil, 0

local function due_of(due)
  return string.sub(due, 1, 1) == '+' and now + tonumber(due) or tonumber(due)
end

local function write(i, group, first, last)
  local put
  if group.queue ~= '' then
    put = redis.pcall('LPUSH', KEYS[5 + i], unpack(ARGV, at + first, at + last))
  else
    local entries = {}
    for j = first, last do
      last_due = math.max(last_due, due_of(group.dues[j]))
      entries[#entries + 1] = string.format('%.6f', due_of(group.dues[j]))
      entries[#entries + 1] = ARGV[at + j]
    end
    put = redis.pcall('ZADD', KEYS[5], unpack(entries))
  end
  if type(put) == 'number' then added = added + last - first + 1 end
  return type(put) == 'table' and put
end

-- A deduplicated job is written with its lock, or not at all. Jobs of one queue may be of several classes, also without locks.
local function write_unique(i, group, j, lock)
  if not lock then return write(i, group, j, j) end
  local claim = late().read_lock_request(lock)
  local owner = late().rival(claim)
  if owner and claim.drops then
    late().drop_duplicate(claim)
    if claim.mark then redis.pcall(unpack(claim.mark)) end
    owners[#owners + 1] = { i - 1, j - 1, owner }
    return false
  end
  if owner then ARGV[at + j] = late().marked(ARGV[at + j], owner) end
  local failed = write(i, group, j, j)
  if not failed and not owner then
    local wait_ms = group.queue == '' and math.max(0, due_of(group.dues[j]) - now) * 1000 or 0
    claim.ttl_ms = math.min(claim.ttl_ms + wait_ms, 9007199254740991)
    late().obtain(claim)
  end
  return failed
end

-- Before the jobs: a dropped one gets another state.
for _, status in ipairs(head.statuses) do redis.pcall('SET', unpack(status)) end
for i, group in ipairs(head.groups) do
  local locks, failed, first_of_group = head.locks[i], false, added
  for first = 1, group.n, 1000 do
    local last = math.min(first + 999, group.n)
    if next(locks) then
      for j = first, last do failed = failed or write_unique(i, group, j, locks[tostring(j - 1)]) end
    else
      failed = failed or write(i, group, first, last)
    end
  end
  -- Refused by an ACL: the types are correct. The jobs that are written are still counted.
  broken = broken or failed or nil
  if group.class ~= '' and added > first_of_group then
    local n = added - first_of_group
    late().count_accepted(group.class, n, n * group.each)
  end
  if group.queue ~= '' and added > 0 then
    redis.pcall('SADD', KEYS[4], group.queue)
    if string.find(group.queue, '~', 1, true) then late().arrive(group.queue) end
  end
  at = at + group.n
end
if added ~= counted then
  redis.call('HINCRBY', key, 'total', added - counted)
  redis.call('HINCRBY', key, 'pending', added - counted)
end
if broken then return broken end
if is_new then redis.pcall('HINCRBY', 'aw:counters', 'batch_events_total{event="created"}', 1) end
if head.opens then redis.call('HINCRBY', key, 'open', 1) end
if head.closes then redis.call('HINCRBY', key, 'open', -1) end
if part then
  redis.call('HSET', part.workflow, part.step .. ':written', part.number)
  if part.last then redis.call('HSET', part.workflow, part.step .. ':state', 'running') end
end
-- A batch outlives the time of its last job, by a day at least: a process may come late.
local ttl_s, needed_s = is_new and head.ttl_s or tonumber(redis.call('HGET', key, 'ttl_s')), math.ceil(last_due - now) + math.max(head.ttl_s, 86400)
if last_due > 0 and needed_s > ttl_s then
  ttl_s = needed_s
  redis.call('HSET', key, 'ttl_s', string.format('%d', needed_s))
end
if is_new then redis.call('EXPIRE', key, string.format('%d', ttl_s)) else batch_functions().keep(key, string.format('%d', ttl_s)) end
local reply = { 1, owners }
redis.call('SET', KEYS[3], cjson.encode(reply), 'PX', head.token_ms)
-- A new batch whose jobs wait has no event.
if not is_new or added == 0 then batch_functions().settle(bid) end
return reply
