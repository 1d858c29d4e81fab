-- Admit fetched jobs that start next: each gets the slot of its class or is held, then its lock is released or renewed
-- (parts/start_lock.lua), and its state is written. One pass for all jobs of a class, in the order of the call: the limit is read
-- once, and their slots are taken by one command.
-- KEYS    1 working list, then per class: its limit, if it has one, then per job, where the class has them: its lock, its status key
-- ARGV    1 the payload of the oldest job  2 how many entries of the working list, from that job on to newer ones, have the jobs
--         then per class (another one if the jobs differ in any of these), '' for what it does not have: number of jobs, name, queue;
--         limit, the most slots of one scope, seconds of a slot, owner of the working list, '1' if a job without a slot does not wait;
--         milliseconds that a lock is kept, '0' to release it, while its job is held, and after that (parts/lock_ticket.lua),
--         '1' for until_expired; seconds that a state is kept; 'since' or 'scope' if its jobs have more arguments
--         then per job: payload as fetched, jid; with 'since' or 'scope': since when it has waited, '' for not yet; with 'scope': its scope
-- RETURN  1 if every job may start; else per job 1, or { state, slots taken, limit, jobs of its scope that wait, error of its state }:
--         state 1 it may start, 0 it waits, 2 refused, and still in the working list; -1 fenced: the process no longer owns it,
--         and nothing was written; 3 an error, and then its text: ask for it alone
-- COST    O(W + n), and per class O(n log N); a class with scopes as much per job as take_slot.lua
-- CRASH   before: in the working list, as they were. after: each there with its slot, or among the waiting jobs. A job that is
--         returned to its queue before it starts frees its slot, takes its lock again and is `queued` again, in the step that
--         moves it. Called again, a job finds its slot taken, or is gone.
local working, reply, all_start = KEYS[1], {}, true
local next_key, next_value = 2, 3

-- The jobs are neighbours in the working list, as they are in the memory of the process: one LPOS for all.
local ours = {}
local oldest = ARGV[2] ~= '1' and redis.call('LPOS', working, ARGV[1], 'RANK', -1)
if oldest then
  for _, payload in ipairs(redis.call('LRANGE', working, math.max(0, oldest + 1 - tonumber(ARGV[2])), oldest)) do
    ours[payload] = true
  end
end

local function is_ours(payload)
  return ours[payload] or redis.call('LPOS', working, payload, 'RANK', -1)
end

local function error_text(failed)
  return type(failed) == 'table' and failed.err or tostring(failed)
end

-- Return the resources of other limits of a job that is held: its lock.
local function held_lock(class, i)
  if not class.keep_ms then return nil end
  local lock = { key = KEYS[class.keys + i * class.key_step], owner = ARGV[class.values + i * class.step + 1] }
  lock.keep_ms, lock.after_ms = class.hold_ms, class.after_ms
  return { lock = lock, slots = {} }
end

-- Hold jobs of a class without scopes. The jobs move last: an earlier error leaves them in the working list, and no later step can fail.
local held_before = 0
local function hold(class, held, now)
  local waiting, entries = class.base .. ':waiting:', {}
  for k, i in ipairs(held) do
    local at = class.values + i * class.step
    local since, payload = class.more and ARGV[at + 2] or '', ARGV[at]
    if since == '' then
      -- Jobs of one call keep their order.
      held_before = held_before + 1
      since, payload = late().first_wait(payload, now + held_before / 1000000)
    end
    entries[2 * k - 1], entries[2 * k] = since, late().waiting_entry(class.queue, ARGV[at + 1], held_lock(class, i), payload)
  end
  late().note_waiting(class.base, '')
  redis.call('ZADD', waiting, unpack(entries))
  for _, i in ipairs(held) do
    local payload = ARGV[class.values + i * class.step]
    ours[payload] = nil
    redis.call('LREM', working, -1, payload)
    late().release_resources(held_lock(class, i))
  end
  return redis.call('ZCARD', waiting)
end

-- Return those of the names that have a slot, as name -> true, and their number.
local function with_slot(running_key, names)
  local found, count = {}, 0
  for i, score in ipairs(redis.call('ZMSCORE', running_key, unpack(names))) do
    if score then
      found[names[i]] = true
      count = count + 1
    end
  end
  return found, count
end

-- Decide about the slots of a class without scopes, as request_slot does about one; returns the answer of each job that does not start.
local function ask_slots(class)
  local base, now, answers, jobs, n = class.base, redis_now(), {}, {}, 0
  for i = 1, class.n do
    if is_ours(ARGV[class.values + i * class.step]) then
      n = n + 1
      jobs[n] = i
    else
      answers[i] = { -1, 0, 0, 0 }
    end
  end
  if n == 0 then return answers end
  local running_key, members, granted, freed, held = base .. ':running', {}, {}, {}, {}
  -- ZREM first, which is allowed at maxmemory.
  redis.call('ZREM', running_key, '')
  -- Mostly it is the limit that the process knows, without an override or throttling.
  local fields = redis.call('HMGET', base, 'limit', 'share', 'override', 'current')
  local limit = class.limit
  if fields[1] ~= limit or (fields[2] or '0') ~= class.share or fields[3] or fields[4] then
    limit = late().note_limit(base, limit, class.share, now)
  end
  limit = tonumber(limit)
  local count, waits = redis.call('ZCARD', running_key), redis.pcall('ZCARD', base .. ':turns') ~= 0
  -- Only a job that has waited, or that a limited-capacity worker has pushed, may have a reservation.
  local may_be_reserved, reservations = class.refuses or class.more, {}
  local mine, reserved, reserved_count = {}, {}, 0
  for k, i in ipairs(jobs) do
    local jid = ARGV[class.values + i * class.step + 1]
    members[k] = class.owner .. ' ' .. jid
    if may_be_reserved then reservations[k] = ' ' .. jid end
  end
  if may_be_reserved then reserved, reserved_count = with_slot(running_key, reservations) end
  local seen = {}
  local full = (waits and reserved_count < n) or (limit ~= 0 and count - reserved_count + n > limit)
  if full then
    late().free_expired(base, now)
    if may_be_reserved then reserved, reserved_count = with_slot(running_key, reservations) end
    local mine_count
    mine, mine_count = with_slot(running_key, members)
    -- Waiting jobs come first, and no slot stays free while a job waits.
    local handed = waits and mine_count + reserved_count < n and late().hand_over(base, now, 100) or 0
    count = redis.call('ZCARD', running_key)
    -- Further ones may wait.
    if handed == 100 then count = math.max(count, limit) end
  end
  local expiry, was_reserved = string.format('%.0f', now + class.ttl_s), false
  for k, i in ipairs(jobs) do
    local payload, member, reservation = ARGV[class.values + i * class.step], members[k], reservations[k]
    if full and seen[payload] then
      answers[i] = { 3, 'another job of this call has the same bytes' }
    else
      if full then seen[payload] = true end
      if reserved[reservation] then
        freed[#freed + 1] = reservation
        count = count - 1
      end
      if limit == 0 or mine[member] or count < limit then
        if not mine[member] then count = count + 1 end
        granted[#granted + 1] = expiry
        granted[#granted + 1] = member
      elseif class.refuses then
        answers[i] = { 2, count, limit, 0 }
      else
        answers[i] = { 0, count, limit, 0 }
        held[#held + 1] = i
        was_reserved = was_reserved or reserved[reservation]
      end
    end
  end
  if freed[1] and redis.call('EXISTS', base .. ':scopes') == 0 then
    redis.call('ZREM', running_key, unpack(freed))
  elseif freed[1] then
    late().free_slots(base, freed)
  end
  if granted[1] then redis.call('ZADD', running_key, unpack(granted)) end
  if held[1] then
    local waiting = hold(class, held, now)
    for k, i in ipairs(held) do answers[i][4] = waiting - #held + k end
    -- A reservation is free again; assign it to the next waiting job.
    if was_reserved then late().hand_over(base, now, 100) end
  end
  return answers
end

-- Ask for the slot of a job that may have a scope; returns its answer if it does not start.
local function ask_slot(class, i)
  local at = class.values + i * class.step
  local payload, jid, since, scope = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local found = late().request_slot({
    working = working, base = class.base, payload = payload, member = class.owner .. ' ' .. jid, jid = jid, queue = class.queue,
    limit = class.limit, ttl_s = class.ttl_s, since = since, scope = scope, share = class.share, may_wait = not class.refuses,
    may_be_reserved = class.refuses or since ~= '', holds = held_lock(class, i),
  })
  if found[1] == 0 then ours[payload] = nil end
  return (found.err or found[1] ~= 1) and found or nil
end

-- Release or renew the locks of a class's jobs that start, and write their states. `answers` has those that do not start.
local function start(class, answers)
  local over = {}
  for i = 1, class.n do
    if not answers[i] then
      local key, jid = class.keys + i * class.key_step, ARGV[class.values + i * class.step + 1]
      if class.keep_ms == '0' then
        if redis.pcall('HGET', KEYS[key], 'jid') == jid then over[#over + 1] = KEYS[key] end
      elseif class.keep_ms then
        local done, failed = pcall(late().start_lock, KEYS[key], jid, class.name, class.keep_ms, '0', nil, class.period)
        if not done then answers[i] = { 3, error_text(failed) } end
      end
      if class.status_s and not answers[i] then
        local written = redis.pcall('SET', KEYS[class.keys + (i + 1) * class.key_step - 1], 'running', 'EX', class.status_s)
        if written.err then answers[i] = { 1, 0, 0, 0, written.err } end
      end
    end
  end
  if over[1] then redis.call('DEL', unpack(over)) end
end

local function value_if(at)
  return ARGV[at] ~= '' and ARGV[at] or nil
end

while next_value <= #ARGV do
  local at = next_value
  local class = {
    n = tonumber(ARGV[at]), name = ARGV[at + 1], queue = ARGV[at + 2], limit = value_if(at + 3), share = ARGV[at + 4],
    ttl_s = tonumber(ARGV[at + 5]), owner = ARGV[at + 6], refuses = value_if(at + 7), keep_ms = value_if(at + 8),
    hold_ms = tonumber(ARGV[at + 9]), after_ms = tonumber(ARGV[at + 10]), period = value_if(at + 11),
    status_s = value_if(at + 12), more = value_if(at + 13),
  }
  local scoped = class.more == 'scope'
  class.step = scoped and 4 or class.more and 3 or 2
  class.key_step = (class.keep_ms and 1 or 0) + (class.status_s and 1 or 0)
  if class.limit then
    class.base = KEYS[next_key]
    next_key = next_key + 1
  end
  -- Of the job before the first.
  class.values, class.keys = at + 14 - class.step, next_key - class.key_step
  next_value, next_key = at + 14 + class.n * class.step, next_key + class.n * class.key_step

  local answers, done, failed = {}, true, nil
  if class.limit and not scoped then
    done, failed = pcall(ask_slots, class)
    if done then answers = failed end
  else
    for i = 1, class.n do
      if class.limit then
        local asked, found = pcall(ask_slot, class, i)
        if not asked or found and found.err then found = { 3, error_text(found) } end
        answers[i] = found
      elseif not is_ours(ARGV[class.values + i * class.step]) then
        answers[i] = { -1, 0, 0, 0 }
      end
    end
  end
  if done and class.key_step > 0 then done, failed = pcall(start, class, answers) end
  for i = 1, class.n do
    if not done then answers[i] = answers[i] or { 3, error_text(failed) } end
    reply[#reply + 1] = answers[i] or 1
    all_start = all_start and not answers[i]
  end
end
return all_start and 1 or reply
