-- Admit fetched jobs that start next: each gets the slot of its class or is held, then its lock is released or renewed
-- (parts/start_lock.lua). One pass for all jobs of a class, in the order of the call: the limit is read once, and their slots are
-- taken by one command. A job is named by its position: payloads cost a script more than all else, and only a held job needs its own.
-- KEYS    1 working list, then per class: its limit, if it has one, then the lock of each of its jobs, where the class has locks
-- ARGV    1 payload of the job that starts now, whose position is 0  2 how many more there are, neighbours in the working list: their
--         positions count from 1, the oldest  3 payload of that one  4 payload of the newest
--         then per class (another one if the jobs differ in any of these), '' for what it does not have: number of jobs, name, queue;
--         limit, the most slots of one scope, seconds of a slot, owner of the working list, '1' if a job without a slot does not wait;
--         milliseconds that a lock is kept, '0' to release it, while its job is held, and after that (parts/lock_ticket.lua),
--         '1' for until_expired; 'since' or 'scope' if its jobs have more arguments; positions of its jobs, as 'P1 P2 '
--         then per job: jid; with 'since' or 'scope': since when it has waited, '' for not yet; with 'scope': its scope
-- RETURN  1 if every job may start; else per job 1, or { state, slots taken, limit, jobs of its scope that wait }:
--         state 0 it waits, 2 refused, and still in the working list; -1 fenced: the process no longer owns it, and nothing was
--         written; 3 not decided, and then why: ask for it alone
-- COST    O(W + n), and per class O(n log N); a class with scopes as much per job as take_slot.lua
-- CRASH   before: in the working list, as they were. after: each there with its slot, or among the waiting jobs. A job that is
--         returned to its queue before it starts frees its slot and takes its lock again, in the step that moves it. Called again,
--         a job finds its slot taken, is gone, or is not decided, since its neighbours are gone.
local working, reply, all_start = KEYS[1], {}, true
local next_key, next_value = 2, 5

-- Neighbours are all still there if as many entries as they are lie from the oldest to the newest.
local first, others, oldest, newest = redis.call('LPOS', working, ARGV[1], 'RANK', -1), tonumber(ARGV[2])
if others > 0 then
  oldest, newest = redis.call('LPOS', working, ARGV[3], 'RANK', -1), redis.call('LPOS', working, ARGV[4])
end
local has_others = others == 0 or (oldest and newest and oldest - newest == others - 1)
local all_ours = first and has_others

-- Return nil for a job that the process owns, else its answer.
local function missing(position)
  if position == 0 then return not first and { -1, 0, 0, 0 } or nil end
  return not has_others and { 3, 'other jobs are between its neighbours' } or nil
end

-- Return the payload at a position. The first call comes before any job leaves the working list.
local payloads
local function payload_at(position)
  if not payloads then
    payloads = {}
    if others > 0 and has_others then
      for i, payload in ipairs(redis.call('LRANGE', working, newest, oldest)) do payloads[others + 1 - i] = payload end
    end
    payloads[0] = ARGV[1]
  end
  return payloads[position]
end

-- Return whether the job with an id lies at a position: the process may know its jobs in another order than they lie here. Only a job
-- that leaves the working list is asked for.
local function lies_at(position, jid)
  return position == 0 or string.find(payload_at(position), '"jid":"' .. jid .. '"', 1, true) ~= nil
end

local function positions_of(class)
  if not class.positions then
    class.positions = {}
    for position in string.gmatch(class.place, '%d+') do class.positions[#class.positions + 1] = tonumber(position) end
  end
  return class.positions
end

local function error_text(failed)
  return type(failed) == 'table' and failed.err or tostring(failed)
end

-- Return the resources of other limits of a job that is held: its lock.
local function held_lock(class, i)
  if not class.keep_ms then return nil end
  local lock = { key = KEYS[class.keys + i], owner = ARGV[class.values + i * class.step] }
  lock.keep_ms, lock.after_ms = class.hold_ms, class.after_ms
  return { lock = lock, slots = {} }
end

-- Remove held jobs from the working list: the newest, at its head, by one command. Only the first call knows the places.
local has_moved = false
local function remove(class, held)
  local positions, left = positions_of(class), #held
  if not has_moved and newest == 0 then
    local next_position = others
    while left > 0 and positions[held[left]] == next_position and next_position > 0 do
      left, next_position = left - 1, next_position - 1
    end
    if left < #held then redis.call('LTRIM', working, #held - left, '-1') end
  end
  has_moved = true
  for k = 1, left do redis.call('LREM', working, '-1', payload_at(positions[held[k]])) end
end

-- Hold jobs of a class without scopes. The jobs move last: an earlier error leaves them in the working list, and no later step can fail.
local held_before = 0
local function hold(class, held, now)
  local waiting, entries, positions, waiting_entry = class.base .. ':waiting:', {}, positions_of(class), late().waiting_entry
  for k, i in ipairs(held) do
    local at = class.values + i * class.step
    local since, new_since = class.more and ARGV[at + 1] or '', nil
    if since == '' then
      -- Jobs of one call keep their order.
      held_before = held_before + 1
      new_since = string.format('%.6f', now + held_before / 1000000)
    end
    entries[2 * k - 1] = new_since or since
    entries[2 * k] = waiting_entry(class.queue, ARGV[at], held_lock(class, i), payload_at(positions[i]), new_since)
  end
  late().note_waiting(class.base, '')
  redis.call('ZADD', waiting, unpack(entries))
  remove(class, held)
  if class.keep_ms then
    for _, i in ipairs(held) do late().release_resources(held_lock(class, i)) end
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
    answers[i] = not all_ours and missing(positions_of(class)[i]) or nil
    if not answers[i] then
      n = n + 1
      jobs[n] = i
    end
  end
  if n == 0 then return answers end
  local running_key, members, granted, freed, held = base .. ':running', {}, {}, {}, {}
  -- ZREM first, which is allowed at maxmemory.
  redis.call('ZREM', running_key, '')
  -- Mostly it is the limit that the process knows, without an override or throttling, and for this shard alone (no +).
  local fields = redis.call('HMGET', base, 'limit', 'share', 'override', 'current')
  local limit = class.limit
  if fields[1] ~= limit or (fields[2] or '0') ~= class.share or fields[3] or fields[4] or string.byte(limit) == 43 then
    limit = late().note_limit(base, limit, class.share, now)
  end
  limit = tonumber(limit)
  local count, waits = redis.call('ZCARD', running_key), redis.pcall('ZCARD', base .. ':turns') ~= 0
  -- Only a job that has waited, or that a limited-capacity worker has pushed, may have a reservation.
  local may_be_reserved, reservations = class.refuses or class.more, {}
  local mine, reserved, reserved_count = {}, {}, 0
  for k, i in ipairs(jobs) do
    local jid = ARGV[class.values + i * class.step]
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
    local member, reservation = members[k], reservations[k]
    if full and seen[member] then
      answers[i] = { 3, 'another job of this call has the same id' }
    else
      if full then seen[member] = true end
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
      elseif not lies_at(positions_of(class)[i], ARGV[class.values + i * class.step]) then
        answers[i] = { 3, 'it does not lie at its position' }
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
  local jid, since, scope = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if not lies_at(positions_of(class)[i], jid) then return { 3, 'it does not lie at its position' } end
  local found = late().request_slot({
    working = working, base = class.base, payload = payload_at(positions_of(class)[i]), member = class.owner .. ' ' .. jid, jid = jid,
    queue = class.queue, limit = class.limit, ttl_s = class.ttl_s, since = since, scope = scope, share = class.share,
    may_wait = not class.refuses, may_be_reserved = class.refuses or since ~= '', holds = held_lock(class, i),
  })
  return (found.err or found[1] ~= 1) and found or nil
end

-- Release or renew the locks of a class's jobs that start. `answers` has those that do not start.
local function start(class, answers)
  local over = {}
  for i = 1, class.n do
    if not answers[i] then
      local key, jid = KEYS[class.keys + i], ARGV[class.values + i * class.step]
      if class.keep_ms ~= '0' then
        local done, failed = pcall(late().start_lock, key, jid, class.name, class.keep_ms, '0', nil, class.period)
        if not done then answers[i] = { 3, error_text(failed) } end
      elseif redis.pcall('HGET', key, 'jid') == jid then
        over[#over + 1] = key
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
    more = value_if(at + 12), place = ARGV[at + 13],
  }
  local scoped = class.more == 'scope'
  class.step = scoped and 3 or class.more and 2 or 1
  if class.limit then
    class.base = KEYS[next_key]
    next_key = next_key + 1
  end
  -- Of the job before the first.
  class.values, class.keys = at + 14 - class.step, next_key - 1
  next_value, next_key = at + 14 + class.n * class.step, next_key + (class.keep_ms and class.n or 0)

  local answers, done, failed = {}, true, nil
  if class.limit and not scoped then
    done, failed = pcall(ask_slots, class)
    if done then answers = failed end
  elseif class.limit or not all_ours then
    for i = 1, class.n do
      local found = not all_ours and missing(positions_of(class)[i]) or nil
      if class.limit and not found then
        local asked
        asked, found = pcall(ask_slot, class, i)
        if not asked or found and found.err then found = { 3, error_text(found) } end
      end
      answers[i] = found
    end
  end
  if done and class.keep_ms then done, failed = pcall(start, class, answers) end
  for i = 1, class.n do
    if not done then answers[i] = answers[i] or { 3, error_text(failed) } end
    reply[#reply + 1] = answers[i] or 1
    all_start = all_start and not answers[i]
  end
end
return all_start and 1 or reply
