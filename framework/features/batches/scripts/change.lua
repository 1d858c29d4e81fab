-- Change a batch: invalidate it, cancel it, delete it, or add a callback.
-- KEYS    1 the batch (HASH; parts/batch.lua has its other keys)  2 batches by expiry (ZSET)  3 marks of cancelled jobs and batches
-- ARGV    1 bid  2 action: invalidate, cancel, delete, callback  3 of a callback: its event  4 of a callback: queue and payload (JSON)
-- RETURN  1 done, 0 no such batch, -1 the event has happened: the callback is not added
-- COST    O(1); to delete: O(failed, dead and nested ones); to cancel a step of a workflow: O(its steps)
-- CRASH   before: as it was. after: changed. Called again it changes nothing more; a callback is added once.
-- `cancel` marks the batch as a job is marked: each of its jobs ends before its start, and running ones are asked to end. Nested
-- batches are cancelled by the caller. With a step of a workflow the whole workflow is cancelled: a step that was written a moment
-- before must not run on. `delete` keeps the mark: jobs that were cancelled stay so.
-- For how long a mark is kept at least, as `CANCELLED_TTL_S` of wire/keys.py.
local MARK_S = 2592000
local key, bid, action = KEYS[1], ARGV[1], ARGV[2]
local batches = batch_functions()
if redis.call('HEXISTS', key, 'pending') == 0 then
  redis.call('ZREM', KEYS[2], bid)
  return 0
end
if action == 'callback' then
  local event = ARGV[3]
  if redis.call('HEXISTS', key, event .. '_at') == 1 then return -1 end
  local stored = redis.call('HGET', key, 'on_' .. event)
  local callbacks, added = stored and cjson.decode(stored) or {}, cjson.decode(ARGV[4])
  for _, one in ipairs(callbacks) do
    if one[2] == added[2] then return 1 end
  end
  callbacks[#callbacks + 1] = added
  redis.call('HSET', key, 'on_' .. event, cjson.encode(callbacks))
  return 1
end
if action == 'delete' then
  local parent, parent_bid = batches.parent_of(key)
  local ended = redis.call('HMGET', key, 'complete_at', 'success_at', 'finished_at')
  for _, suffix in ipairs({ '', ':failed', ':dead', ':children', ':results' }) do redis.call('UNLINK', key .. suffix) end
  redis.call('ZREM', KEYS[2], bid)
  if parent then
    -- Its parent does not wait for it any more.
    redis.call('SREM', parent .. ':children', bid)
    redis.call('HINCRBY', parent, 'children', -1)
    for i, event in ipairs({ 'complete', 'success', 'finished' }) do
      if ended[i] then redis.call('HINCRBY', parent, event .. '_children', -1) end
    end
    batches.settle(parent_bid)
  end
  return 1
end
local now = batches.now()
redis.call('HSETNX', key, 'invalidated_at', now)
if action == 'invalidate' then return 1 end

-- A batch that has succeeded stays so.
local function cancel(one, one_bid)
  if redis.call('HEXISTS', one, 'success_at') == 1 or redis.call('HEXISTS', one, 'pending') == 0 then return end
  redis.call('HSETNX', one, 'invalidated_at', now)
  redis.call('HSETNX', one, 'cancelled_at', now)
  redis.call('HDEL', one, 'open')
  if redis.call('HEXISTS', one, 'finished_at') == 0 then
    redis.call('ZADD', KEYS[3], now, one_bid)
    -- At least as long as the batch: its last job may be due later.
    local ttl_s = tonumber(redis.call('HGET', one, 'ttl_s'))
    batches.keep(one, ttl_s)
    redis.call('EXPIRE', KEYS[3], string.format('%d', math.max(MARK_S, ttl_s, redis.call('TTL', KEYS[3]))))
  end
  batches.settle(one_bid)
end

local workflow = batches.workflow_of(bid)
local steps = workflow and redis.call('HGET', workflow, 'steps')
if steps then
  batches.cancel_workflow(workflow)
  for step in string.gmatch(steps, '%S+') do
    local step_bid = string.gsub(bid, '%.[^.]*$', '.' .. step)
    if step_bid ~= bid then cancel('aw:batch:' .. step_bid, step_bid) end
  end
end
cancel(key, bid)
return 1
