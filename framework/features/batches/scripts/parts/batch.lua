-- release_batch(bid, jid, how, answer, kept): count a move of a batch's job, in the step that moves the job, and enqueue
--         the callbacks of the events that it causes. batch_functions(): the functions that scripts of batches share.
-- how     done     it succeeded                            failed   it failed, and will run again
--         dead     it died: no retry is left               removed  an operator ended it: cancelled, deleted, dropped, retired
--         skipped  it was dropped before its queue         revived  an operator enqueued it again after its death
-- kept    the place of the job, if its batch keeps the results of its jobs: the answer of a job that succeeded is stored with the batch
-- keys    aw:batch:BID HASH: total, pending (not succeeded), removed, open (blocks that write more jobs), children,
--         EVENT_children (nested batches that have the event), EVENT_at (when it happened), on_EVENT (its callbacks),
--         parent, ttl_s, description, callback_queue, created_at, invalidated_at, cancelled_at
--         aw:batch:BID:failed SET of jobs that failed and will run again, aw:batch:BID:dead SET of jobs that died
--         aw:batch:BID:results HASH of jid -> place and answer; :bytes counts them, and :full notes that one did not fit
--         aw:batch_events LIST: events of batches that are not in the log yet, the last 1,000
-- CRASH   as the step that they belong to: a job is counted when it leaves its place, and not before. That
--         happens once, because only the step that finds the job at its place comes here. An event and its callbacks are one
--         step too. Callbacks of a nested batch are jobs of its parent, which waits for them. A batch that is unknown (deleted,
--         expired, Sidekiq Pro's) counts nothing.

-- Made once per call of a script, which may move a hundred jobs of batches.
local batch_made

-- Return the functions. Redis runs the whole source at each call of a script, and makes each function of the top level again: a
-- call that moves no job of a batch does not pay for these.
local function batch_functions()
  if batch_made then return batch_made end
  local LINGER_S, DEAD_S, MOST_RESULT_BYTES = 86400, 15552000, 16777216

  local function now()
    return string.format('%.6f', redis_now())
  end

  -- Count an event for `jobs counters`, in the step that causes it. Another type of the key must not stop a job's end.
  local function count(name, label, value, amount)
    redis.pcall('HINCRBY', 'aw:counters', name .. '{' .. label .. '="' .. value .. '"}', amount)
  end

  -- Let a batch live for its time to live from now on.
  local function keep(key, ttl_s)
    for _, suffix in ipairs({ '', ':failed', ':dead', ':children' }) do redis.call('EXPIRE', key .. suffix, ttl_s) end
  end

  -- The same where an EXPIRE of all its keys says something new: not at each job, a tenth of the time may pass.
  local function keep_alive(key, ttl_s)
    if redis.call('TTL', key) < tonumber(ttl_s) * 0.9 then keep(key, ttl_s) end
  end

  -- Return the key of the workflow that a batch is a step of, nil for none (features/workflows/definition.py: step_bid).
  local function workflow_of(bid)
    local id = string.match(bid, '^aw%-(wf%-[^.]+)%.')
    return id and 'aw:workflow:' .. id
  end

  -- Return the key of the results of a step.
  local function results_of(workflow, step)
    return 'aw:batch:aw-' .. string.sub(workflow, 13) .. '.' .. step .. ':results'
  end

  -- Let a workflow live for its time to live from now on, with the jobs of its steps.
  local function keep_workflow(key, ttl_s)
    redis.call('EXPIRE', key, ttl_s)
    for name in string.gmatch(redis.call('HGET', key, 'steps') or '', '%S+') do
      redis.call('EXPIRE', key .. ':jobs:' .. name, ttl_s)
      -- Of an earlier step: a later one may receive them. Its batch lives for a day only.
      redis.call('EXPIRE', results_of(key, name), ttl_s)
    end
  end

  -- A workflow must not expire while a step of it is alive. Not at each job: a tenth of the time may pass.
  local function keep_workflow_of(bid, ttl_s)
    local workflow = workflow_of(bid)
    if not workflow then return end
    local left_s = redis.call('TTL', workflow)
    if left_s >= 0 and left_s < tonumber(ttl_s) * 0.9 then keep_workflow(workflow, ttl_s) end
  end

  local function cancel_workflow(key)
    if redis.call('HEXISTS', key, 'ended_at') == 1 then return end
    redis.call('HSET', key, 'cancelled_at', now(), 'ended_at', now())
    count('workflows_total', 'state', 'cancelled', 1)
  end

  -- Note the events, which happen together, and enqueue their callbacks. A queue that does not take one (another type, a queue of
  -- another shard) leaves it to the schedule set, from which a poller moves it. The log's lines are kept: this step knows the events,
  -- and the process that calls the script does not.
  local function fire(key, events, parent, failed, dead)
    local at = now()
    local seen = redis.call('HMGET', key, 'total', 'pending', 'removed', 'created_at', 'description', 'on_' .. events[1],
      'on_' .. (events[2] or ''), 'on_' .. (events[3] or ''))
    local times, lines, all = {}, {}, 0
    for i, event in ipairs(events) do
      local callbacks = seen[5 + i] and cjson.decode(seen[5 + i]) or {}
      for _, callback in ipairs(callbacks) do
        local queue = callback[1]
        local data = string.sub(callback[2], 1, -2) .. ',"created_at":' .. at
        local put = queue ~= '' and redis.pcall('LPUSH', 'queue:' .. queue, data .. ',"enqueued_at":' .. at .. '}')
        if type(put) == 'number' then
          redis.pcall('SADD', 'queues', queue)
        else
          redis.pcall('ZADD', 'schedule', at, data .. '}')
        end
        keep_event(data .. '}', queue)
      end
      times[#times + 1] = event .. '_at'
      times[#times + 1] = at
      lines[i] = cjson.encode({
        bid = string.sub(key, 10), event = event, at = at, total = seen[1], pending = seen[2], removed = seen[3], created_at = seen[4],
        description = seen[5], failures = failed + dead, dead = dead,
      })
      count('batch_events_total', 'event', event, '1')
      if #callbacks > 0 then count('batch_callbacks_total', 'event', event, #callbacks) end
      if parent and event ~= 'death' then redis.call('HINCRBY', parent, event .. '_children', 1) end
      all = all + #callbacks
    end
    redis.call('HSET', key, unpack(times))
    local kept = redis.pcall('RPUSH', 'aw:batch_events', unpack(lines))
    if type(kept) == 'number' and kept > 1000 then redis.pcall('LTRIM', 'aw:batch_events', '-1000', '-1') end
    if parent and all > 0 then
      redis.call('HINCRBY', parent, 'total', all)
      redis.call('HINCRBY', parent, 'pending', all)
    end
  end

  -- Return the key of the parent, nil when there is none (any more).
  local function parent_of(key)
    local bid = redis.call('HGET', key, 'parent')
    local parent = bid and 'aw:batch:' .. bid
    if parent and redis.call('HEXISTS', parent, 'pending') == 1 then return parent, bid end
  end

  -- Enqueue the callbacks of the events that have happened in the batch and in those around it. `none_failed`: it is known that no job
  -- of the batch itself has failed.
  local function settle(bid, none_failed)
    while bid do
      local key = 'aw:batch:' .. bid
      local fields = redis.call('HMGET', key, 'pending', 'removed', 'open', 'children', 'complete_children', 'success_children',
        'finished_children', 'complete_at', 'success_at', 'finished_at', 'cancelled_at', 'parent', 'keeps_results')
      for i = 1, 7 do fields[i] = tonumber(fields[i]) or 0 end
      local pending, open, children = fields[1], fields[3], fields[4]
      if open > 0 then return end
      local failed, dead = 0, 0
      if not none_failed and redis.call('EXISTS', key .. ':failed', key .. ':dead') > 0 then
        failed, dead = redis.call('SCARD', key .. ':failed'), redis.call('SCARD', key .. ':dead')
      end
      local unfinished = pending - fields[2] - dead
      local events, has = {}, {}
      local function reach(event, reached, happened)
        if reached and not happened then
          events[#events + 1] = event
          has[event] = true
        end
      end
      reach('complete', unfinished - failed <= 0 and fields[5] >= children, fields[8])
      -- A cancelled batch is perhaps one whose writer was killed half way: what it has is not all.
      reach('success', pending <= 0 and fields[6] >= children and not fields[11], fields[9])
      reach('finished', unfinished <= 0 and fields[7] >= children, fields[10])
      local parent, parent_bid
      if #events > 0 then
        if fields[12] then parent, parent_bid = parent_of(key) end
        fire(key, events, parent, failed, dead)
        if has.success then
          -- Mostly it has no other key.
          if failed + dead + children > 0 then keep(key, LINGER_S) else redis.call('EXPIRE', key, LINGER_S) end
          if fields[13] and not workflow_of(bid) then redis.call('EXPIRE', key .. ':results', LINGER_S) end
        end
        if has.finished and fields[11] then redis.call('ZREM', 'aw:cancelled', bid) end
      end
      bid, none_failed = parent_bid, false
    end
  end

  -- The first death in a batch is one in each batch around it.
  local function note_death(key)
    while key and not redis.call('HGET', key, 'death_at') do
      local parent = parent_of(key)
      fire(key, { 'death' }, parent, redis.call('SCARD', key .. ':failed'), redis.call('SCARD', key .. ':dead'))
      redis.call('HSET', key, 'ttl_s', math.max(DEAD_S, tonumber(redis.call('HGET', key, 'ttl_s')) or 0))
      keep(key, redis.call('HGET', key, 'ttl_s'))
      key = parent
    end
  end

  -- Keep the answer of a job with its batch. What does not fit is noted: a reader must not take the others for all.
  local function keep_result(key, jid, place, answer, ttl_s)
    local results = key .. ':results'
    local fits = redis.call('HINCRBY', results, ':bytes', #answer) <= MOST_RESULT_BYTES
    redis.call('HSET', results, fits and jid or ':full', fits and place .. ' ' .. answer or 1)
    redis.call('EXPIRE', results, ttl_s)
  end

  batch_made = {
    count = count, now = now, keep = keep, keep_alive = keep_alive, parent_of = parent_of, settle = settle, note_death = note_death, workflow_of = workflow_of,
    keep_workflow = keep_workflow, keep_workflow_of = keep_workflow_of, cancel_workflow = cancel_workflow, keep_result = keep_result,
    results_of = results_of, LINGER_S = LINGER_S,
    DEAD_S = DEAD_S,
  }
  return batch_made
end

local function release_batch(bid, jid, how, answer, kept)
  local key = 'aw:batch:' .. bid
  local known = redis.call('HMGET', key, 'pending', 'ttl_s')
  if not known[1] then return end
  local batches, failed, dead = batch_functions(), key .. ':failed', key .. ':dead'
  local none_failed = false
  if how == 'failed' or how == 'revived' then
    if redis.call('SMOVE', dead, failed, jid) == 0 and how == 'failed' then redis.call('SADD', failed, jid) end
  elseif how == 'dead' then
    redis.call('SREM', failed, jid)
    redis.call('SADD', dead, jid)
    batches.note_death(key)
  elseif how == 'removed' then
    -- A job that died and is deleted afterwards stays dead.
    if redis.call('SISMEMBER', dead, jid) == 1 then return end
    redis.call('SREM', failed, jid)
    redis.call('HINCRBY', key, 'removed', 1)
  else
    -- Mostly no job of the batch has failed.
    none_failed = redis.call('EXISTS', failed, dead) == 0
    if not none_failed then
      redis.call('SREM', failed, jid)
      redis.call('SREM', dead, jid)
    end
    if kept and how == 'done' and answer ~= '' then batches.keep_result(key, jid, kept, answer, known[2]) end
    -- As text: Redis formats a number with 17 digits.
    redis.call('HINCRBY', key, 'pending', '-1')
    if how == 'skipped' then redis.call('HINCRBY', key, 'total', -1) end
  end
  local ttl_s = known[2]
  if how == 'dead' then ttl_s = redis.call('HGET', key, 'ttl_s') end
  -- A set that this step has made needs its expiry.
  if how == 'failed' or how == 'revived' or how == 'dead' then batches.keep(key, ttl_s) else batches.keep_alive(key, ttl_s) end
  batches.keep_workflow_of(bid, ttl_s)
  batches.settle(bid, none_failed)
end

