-- request_slot(request): give a job a slot of its limit, or hold it until a slot is free; returns what take_slot.lua returns.
-- request working list, base (the limit), payload as fetched, member, jid, queue, limit, ttl_s, since ('' for a job that has not
--         waited), scope, share, may_wait, may_be_reserved (a slot was perhaps reserved for it), and holds: its resources of other
--         limits, which it releases when it waits
-- CRASH   as the step that it belongs to.
-- note_limit(base, limit, share, now): note the limit as the process knows it; returns the effective limit.
-- waiting_entry(queue, jid, holds, payload, since): what stands for a held job among the waiting ones; with `since`, as text, its payload
--         says since when it waits; note_waiting(base, scope): note that jobs of a scope wait.
-- Waiting jobs come first, and no slot stays free while a job waits. ZREM first, which is allowed at maxmemory.
local prepared, handed = {}, {}

local function note_limit(base, limit, share, now)
  local names = { 'override', 'override_until', 'limit', 'current', 'current_until', 'portion', 'share' }
  local fields = redis.call('HMGET', base, unpack(names))
  if fields[3] ~= limit then
    redis.call('HSET', base, 'limit', limit)
    redis.call('SADD', 'aw:limits', base)
    if is_shared(limit) then redis.call('SADD', 'aw:limits:shared', base) end
    fields[3] = limit
  end
  if share ~= '0' and fields[7] ~= share then redis.call('HSET', base, 'share', share) end
  return effective_limit(fields, now)
end

-- Make few strings: Redis's Lua hashes every byte of each.
local function waiting_entry(queue, jid, holds, payload, since)
  local lock, entry = lock_for_ticket(holds), nil
  if lock or not string.find(jid, '^%x+$') or string.find(queue, '[%c"\\]') then
    entry = cjson.encode({ queue, jid, lock }) .. '\n'
  else
    entry = '["' .. queue .. '","' .. jid .. '"]\n'
  end
  if not since then return entry .. payload end
  local body = string.byte(payload, -1) == 125 and string.sub(payload, 1, -2) or string.match(payload, '^(.*)}%s*$')
  -- GitLab's field, for readers of the job, and for its old position if it comes back without a slot.
  return entry .. body .. ',"concurrency_limit_buffered_at":' .. since .. '}'
end

local function note_waiting(base, scope)
  if not redis.call('ZSCORE', base .. ':turns', scope) and redis.call('SISMEMBER', base .. ':full', scope) == 0 then
    redis.call('ZADD', base .. ':turns', next_turn(base), scope)
  end
  redis.call('SADD', 'aw:limits:waiting', base)
end

local function request_slot(request)
  if not redis.call('LPOS', request.working, request.payload) then return { -1, 0, 0, 0 } end
  local base, member, scope = request.base, request.member, request.scope
  local now, terms = redis_now(), request.limit .. ' ' .. request.share .. ' ' .. base
  if not prepared[terms] then redis.call('ZREM', base .. ':running', '') end
  local mine = free_slot(base, member)
  local reserved = request.may_be_reserved and free_slot(base, ' ' .. request.jid)
  -- Once for each limit of a run: no step of a run changes it.
  local limit = prepared[terms]
  if not limit then
    limit = note_limit(base, request.limit, request.share, now)
    free_expired(base, now)
    prepared[terms] = limit
  end
  -- Once too if no job could get a slot: none becomes free in between.
  if not mine and not reserved and not handed[terms] then handed[terms] = hand_over(base, now, 100) == 0 end
  -- Not `running`, which takes a count that an ACL refuses for none.
  local taken = redis.call('ZCARD', base .. ':running')
  if limit == 0 or mine or (taken < limit and not scope_is_full(base, scope)) then
    return take_slot(base, member, now + tonumber(request.ttl_s), scope) or { 1, taken + 1, limit, 0 }
  end
  if not request.may_wait then return { 2, taken, limit, 0 } end
  local waiting, since = base .. ':waiting:' .. scope, request.since
  local new_since = since == '' and string.format('%.6f', now) or nil
  -- The job moves last: an earlier error leaves it in the working list, and no later step can fail.
  note_waiting(base, scope)
  local entry = waiting_entry(request.queue, request.jid, request.holds, request.payload, new_since)
  redis.call('ZADD', waiting, new_since or since, entry)
  redis.call('LREM', request.working, '-1', request.payload)
  release_resources(request.holds)
  -- Its scope is full, and not the limit: the next look notes that.
  if taken < limit then handed[terms] = nil end
  -- Its reservation is free again; assign it to the next waiting job.
  if reserved then hand_over(base, now, 100) end
  return { 0, taken, limit, redis.call('ZCARD', waiting) }
end

