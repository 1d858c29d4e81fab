-- Note the end of a step of a workflow, and return the step to start, if there is one.
-- KEYS    1 the workflow (HASH; change.lua has its fields)  2 the batch of the step that has ended  3 its stored jobs
-- ARGV    1 the step that has ended, empty at the start of the workflow  2 the event: start, success, finished
--         3 the step after its success, empty for none  4 the step after its failure, empty for none
-- RETURN  { 'start', STEP } start it, or go on to start it; { 'ended', RESULT } the workflow has ended: succeeded, failed;
--         { 'nothing' } this event has no effect, or had it before; { 'cancelled' }; { 'unknown' } there is no such workflow
-- COST    O(steps)
-- CRASH   before: the job that calls this runs again. after: it runs again too, and gets the same answer until all jobs of the step
--         are written, and 'nothing' afterwards. The state of a step only goes forward, so that a step is started once.
-- A batch that succeeds is finished too: `success` has the effect then. A step that failed may succeed later, when an operator has
-- retried its dead jobs: the workflow goes on, unless the branch of the failure was started.
local key, from, event, after_success, after_failure = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local batches = batch_functions()
local ttl_s = redis.call('HGET', key, 'ttl_s')
if not ttl_s then return { 'unknown' } end
batches.keep_workflow(key, ttl_s)
local now, following = batches.now(), after_success

local function end_step(state)
  local counts = redis.call('HMGET', KEYS[2], 'total', 'removed')
  local dead = redis.call('SCARD', KEYS[2] .. ':dead')
  redis.call('HSET', key, from .. ':state', state, from .. ':ended_at', now, from .. ':dead', dead)
  if counts[1] then redis.call('HSET', key, from .. ':jobs', counts[1], from .. ':removed', counts[2] or 0) end
  redis.call('UNLINK', KEYS[3])
  batches.count('workflow_steps_total', 'state', state, 1)
end

local cancelled = redis.call('HEXISTS', key, 'cancelled_at') == 1
if event ~= 'start' then
  -- A callback that another program has pushed before its time: the event has not happened.
  if redis.call('HEXISTS', KEYS[2], 'pending') == 1 and redis.call('HEXISTS', KEYS[2], event .. '_at') == 0 then return { 'nothing' } end
  local state = redis.call('HGET', key, from .. ':state')
  if event == 'finished' then
    if state == 'succeeded' or redis.call('HEXISTS', KEYS[2], 'success_at') == 1 then return { 'nothing' } end
    if cancelled then
      if state ~= 'cancelled' then end_step('cancelled') end
    elseif state ~= 'failed' then
      end_step('failed')
      redis.call('HINCRBY', key, 'failed_steps', 1)
    end
    following = after_failure
  elseif state == 'failed' then
    if after_failure ~= '' then return { 'nothing' } end
    end_step('succeeded')
    redis.call('HINCRBY', key, 'failed_steps', -1)
    redis.call('HDEL', key, 'ended_at')
  elseif state ~= 'succeeded' then
    end_step('succeeded')
  end
end
if cancelled then return { 'cancelled' } end
if following == '' then
  if redis.call('HSETNX', key, 'ended_at', now) == 0 then return { 'nothing' } end
  local failed = (tonumber(redis.call('HGET', key, 'failed_steps')) or 0) > 0
  -- As its batches: dead jobs may be retried for so long.
  ttl_s = failed and math.max(tonumber(ttl_s), batches.DEAD_S) or batches.LINGER_S
  redis.call('HSET', key, 'ttl_s', ttl_s)
  batches.keep_workflow(key, ttl_s)
  if not failed then
    -- No later step receives them. A failed workflow may go on when its dead jobs are retried.
    for name in string.gmatch(redis.call('HGET', key, 'steps'), '%S+') do redis.call('UNLINK', batches.results_of(key, name)) end
  end
  local result = failed and 'failed' or 'succeeded'
  batches.count('workflows_total', 'state', result, 1)
  return { 'ended', result }
end
local state = redis.call('HGET', key, following .. ':state')
if state and state ~= 'starting' then return { 'nothing' } end
if not state then redis.call('HSET', key, following .. ':state', 'starting', following .. ':started_at', now) end
return { 'start', following }
