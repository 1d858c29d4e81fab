-- Change a batch: invalidate it, cancel it, delete it, or add a callback.
-- KEYS    1 the batch (HASH; parts/batch.lua has its other keys)  2 batches by expiry (ZSET)  3 marks of cancelled jobs and batches
-- ARGV    1 bid  2 action: invalidate, cancel, delete, callback  3 of a callback: its event  4 of a callback: queue and payload (JSON)
-- RETURN  1 done, 0 no such batch, -1 the event has happened: the callback is not added
-- COST    O(1); to delete: O(failed, dead and nested ones)
-- CRASH   before: as it was. after: changed. Called again it changes nothing more; a callback is added once.
-- `cancel` marks the batch as a job is marked: each of its jobs ends before its start, and running ones are asked to end. Nested
-- batches are cancelled by the caller.
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
  for _, suffix in ipairs({ '', ':failed', ':dead', ':children' }) do redis.call('DEL', key .. suffix) end
  redis.call('ZREM', KEYS[2], bid)
  redis.call('ZREM', KEYS[3], bid)
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
if redis.call('HEXISTS', key, 'invalidated_at') == 0 then redis.call('HSET', key, 'invalidated_at', now) end
if action == 'cancel' then
  if redis.call('HEXISTS', key, 'cancelled_at') == 0 then redis.call('HSET', key, 'cancelled_at', now) end
  redis.call('HDEL', key, 'open')
  -- A step that is cancelled has no next one.
  local workflow = batches.workflow_of(bid)
  if workflow and redis.call('HEXISTS', workflow, 'ttl_s') == 1 then batches.cancel_workflow(workflow) end
  if redis.call('HEXISTS', key, 'finished_at') == 0 then
    redis.call('ZADD', KEYS[3], now, bid)
    -- At least as long as the batch: its last job may be due later.
    local ttl_s = tonumber(redis.call('HGET', key, 'ttl_s'))
    batches.keep(key, ttl_s)
    redis.call('EXPIRE', KEYS[3], string.format('%d', math.max(MARK_S, ttl_s, redis.call('TTL', KEYS[3]))))
  end
  batches.settle(bid)
end
return 1
