-- Change a workflow: create it, store the computed jobs of a step, invalidate, cancel or delete it.
-- KEYS    1 the workflow (HASH)  2 workflows by expiry (ZSET)  3 to store jobs: the list that they are in now  4 ... and their place
-- ARGV    1 id  2 action: create, plan, invalidate, cancel, delete  3 to create: {ttl_s, fields} (JSON); to store jobs: the step
--         4 to store jobs: parts  5 ... and jobs
-- RETURN  1 done, 0 no such workflow
-- FIELDS  name, description, queue, parent, definition (JSON, features/workflows/definition.py), steps (names), ttl_s, created_at, ended_at,
--         cancelled_at, invalidated_at, failed_steps; of each step STEP:state (starting, running, succeeded, failed, cancelled), STEP:parts,
--         STEP:written (of these parts), STEP:planned, STEP:started_at, STEP:ended_at, STEP:jobs, STEP:dead, STEP:removed
-- COST    O(steps)
-- CRASH   before: as it was. after: changed. Called again it changes nothing more: the jobs of a step are stored once, so a step
--         that is started by two processes has the jobs that were stored first.
-- `cancel` and `delete` end no jobs: the caller cancels or deletes the batches of the steps afterwards, and repeats both if it dies.
local key, id, action = KEYS[1], ARGV[1], ARGV[2]
local batches = batch_functions()
local now = batches.now()
local exists = redis.call('HEXISTS', key, 'ttl_s') == 1
if action == 'create' then
  if exists then return 1 end
  local head = cjson.decode(ARGV[3])
  for name, value in pairs(head.fields) do redis.call('HSET', key, name, value) end
  redis.call('HSET', key, 'ttl_s', head.ttl_s, 'created_at', now)
  -- Names of workflows that have expired are removed, a few at a time.
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 10)) do
    local left_s = redis.call('TTL', 'aw:workflow:' .. other)
    if left_s < 0 then redis.call('ZREM', KEYS[2], other) else redis.call('ZADD', KEYS[2], now + left_s, other) end
  end
  redis.call('ZADD', KEYS[2], now + head.ttl_s, id)
  batches.keep_workflow(key, head.ttl_s)
  return 1
end
if not exists then
  redis.call('ZREM', KEYS[2], id)
  return 0
end
if action == 'plan' then
  local step = ARGV[3]
  if redis.call('HSETNX', key, step .. ':planned', now) == 0 then
    redis.call('UNLINK', KEYS[3])
    return 1
  end
  redis.call('RENAME', KEYS[3], KEYS[4])
  redis.call('HSET', key, step .. ':parts', ARGV[4], step .. ':jobs', ARGV[5])
elseif action == 'delete' then
  for name in string.gmatch(redis.call('HGET', key, 'steps'), '%S+') do
    redis.call('UNLINK', key .. ':jobs:' .. name, batches.results_of(key, name))
  end
  redis.call('DEL', key)
  redis.call('ZREM', KEYS[2], id)
  return 1
else
  redis.call('HSETNX', key, 'invalidated_at', now)
  if action == 'cancel' then batches.cancel_workflow(key) end
end
batches.keep_workflow(key, redis.call('HGET', key, 'ttl_s'))
return 1
