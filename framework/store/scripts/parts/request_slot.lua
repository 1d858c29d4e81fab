-- request_slot(request): give a job a slot of its limit, or hold it until a slot is free; returns what take_slot.lua returns.
-- request working list, base (the limit), payload as fetched, member, jid, queue, limit, ttl_s, since ('' for a job that has not
--         waited), scope, share, may_wait, may_be_reserved (a slot was perhaps reserved for it), and holds: its resources of other
--         limits, which it releases when it waits
-- CRASH   as the step that it belongs to.
-- Waiting jobs come first, and no slot stays free while a job waits. ZREM first, which is allowed at maxmemory.
local prepared, handed = {}, {}

-- Note the limit as the process knows it, and free what has expired; returns the effective limit. Once for each limit of a run: no
-- step of a run changes it.
local function prepare_limit(base, limit, share, now)
  if redis.call('HGET', base, 'limit') ~= limit then
    redis.call('HSET', base, 'limit', limit)
    redis.call('SADD', 'aw:limits', base)
  end
  if share ~= '0' and redis.call('HGET', base, 'share') ~= share then redis.call('HSET', base, 'share', share) end
  free_expired(base, now)
  return limit_of(base, now)
end

local function request_slot(request)
  if not redis.call('LPOS', request.working, request.payload) then return { -1, 0, 0, 0 } end
  local base, member, scope = request.base, request.member, request.scope
  local now, terms = redis_now(), request.limit .. ' ' .. request.share .. ' ' .. base
  if not prepared[terms] then redis.call('ZREM', base .. ':running', '') end
  local mine = free_slot(base, member)
  local reserved = request.may_be_reserved and free_slot(base, ' ' .. request.jid)
  local limit = prepared[terms] or prepare_limit(base, request.limit, request.share, now)
  prepared[terms] = limit
  -- Once too if no job could get a slot: none becomes free in between.
  if not mine and not reserved and not handed[terms] then handed[terms] = hand_over(base, now, 100) == 0 end
  -- It was written above, so an ACL refuses to have it read.
  if not limit then return redis.pcall('HMGET', base, 'limit') end
  -- Not `running`, which takes a count that an ACL refuses for none.
  local taken = redis.call('ZCARD', base .. ':running')
  if limit == 0 or mine or (taken < limit and not scope_is_full(base, scope)) then
    return take_slot(base, member, now + tonumber(request.ttl_s), scope) or { 1, taken + 1, limit, 0 }
  end
  if not request.may_wait then return { 2, taken, limit, 0 } end
  local waiting, since, payload = base .. ':waiting:' .. scope, request.since, request.payload
  if since == '' then
    since = string.format('%.6f', now)
    -- GitLab's field, for readers of the job, and for its old position if it comes back without a slot.
    payload = string.match(payload, '^(.*)}%s*$') .. ',"concurrency_limit_buffered_at":' .. since .. '}'
  end
  -- The job moves last: an earlier error leaves it in the working list, and no later step can fail.
  if not redis.call('ZSCORE', base .. ':turns', scope) and redis.call('SISMEMBER', base .. ':full', scope) == 0 then
    redis.call('ZADD', base .. ':turns', next_turn(base), scope)
  end
  redis.call('SADD', 'aw:limits:waiting', base)
  local ticket = cjson.encode({ request.queue, request.jid, lock_for_ticket(request.holds) })
  redis.call('ZADD', waiting, since, ticket .. '\n' .. payload)
  redis.call('LREM', request.working, -1, request.payload)
  release_resources(request.holds)
  -- Its scope is full, and not the limit: the next look notes that.
  if taken < limit then handed[terms] = nil end
  -- Its reservation is free again; assign it to the next waiting job.
  if reserved then hand_over(base, now, 100) end
  return { 0, taken, limit, redis.call('ZCARD', waiting) }
end

