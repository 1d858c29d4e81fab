-- Acknowledge and count finished jobs (parts/count.lua), release what they hold, and fetch new ones, in one step.
-- KEYS    1 lease  2 working list  3.. queues in the order of the fetch
-- ARGV    1 lease in ms  2 how many jobs are wanted (1,000 at most come)  3 number of acknowledgements  then their payloads
--         then per queue its quota: the most jobs before the other queues had their turn; below 0: the most jobs at all;
--         with '~' before it the queue may have sub-queues, which fill the quota in turns (parts/turns.lua)
--         then, if an acknowledged job holds something: JSON, per such job [position (from 1), what it holds (parts/release.lua)], or ''
--         then, of jobs that hold only slots and a lock, or only have a state, in parts: 'slot', its limit, the seconds of a slot that
--         a waiting job gets from this process ('': it gets none), or 'lock', '', '', or 'state', the state, seconds that it is kept;
--         behind that how many values, the positions of the jobs as 'P1 P2 ', and per job its member, its lock and its jid, or its
--         status key; and of each tracked job that runs: 'running', the state, its seconds, '2', '', its payload as fetched, its status key
-- RETURN  { lease held (1/0), { positions (from 1) of acknowledged jobs that the process no longer owned },
--           { positions (from 1) of queues whose key is no list },
--           queue's position (from 1), { payloads, oldest first }, ...
--           - queue's position, a block that is next there, or in a sub-queue, and stays (wire/blocks.py): the caller unpacks it, ...
--           { queue's position, limit, member, ... }, { payloads }: jobs that have waited at the limit, each with its slot, ...
--           0, the error of a lock, slot or status that a job did not release or write, ... }
-- COST    O(A*W + Q + F): A acknowledgements, W working list (a few dozen), Q queues, F jobs fetched; a thousand empty queues
--         take a quarter of a millisecond
-- CRASH   before: nothing happened, the finished jobs stay in the working list with what they hold, and run again after recovery.
--         after, reply lost: acknowledged jobs are gone (they were done); fetched ones are in the working list, where
--         reconciliation (alive) or the reaper (dead) finds them, with the slot that a job has got from this step.
-- PEXPIRE first: proves that the process still owns the list, and at maxmemory lets LPUSH pass. No lease, no fetch.
-- Payloads are opaque bytes; nothing here parses them.
local held = redis.call('PEXPIRE', KEYS[1], ARGV[1])
local working = KEYS[2]
-- Lua unpacks some 8,000 values at most, and a script that fails after its RPOP has lost the jobs: the rest comes next time.
local wanted = math.min(tonumber(ARGV[2]), 1000)
local acknowledged = tonumber(ARGV[3])
local fenced, is_fenced, errors = {}, {}, {}

for i = 1, acknowledged do
  if redis.call('LREM', working, '-1', ARGV[3 + i]) == 0 then
    fenced[#fenced + 1] = i
    is_fenced[i] = true
  end
end

-- An ACL may refuse it, and Lua does not roll back: so the jobs behind it still release what they hold.
local function attempt(step, ...)
  local done, failed = pcall(step, ...)
  if failed then errors[#errors + 1] = done and failed or failed.err or tostring(failed) end
end

-- By the position of a queue, the slots of a limit that its oldest waiting jobs get: they are the next ones of the queue.
local next_of, has_next = {}, false

-- Free slots of a limit. Mostly no job waits for one. If jobs without a scope do, those of a queue of this call get the slots when its
-- turn comes; else waiting jobs get them by way of their queues.
local function free_slots(base, members, slot_s)
  local running, turns = base .. ':running', base .. ':turns'
  local others = redis.pcall('EXISTS', base .. ':scopes', turns)
  if others == 0 then
    redis.pcall('ZREM', running, unpack(members))
    return
  end
  local limit = 0
  if others == 1 and held == 1 and wanted > 0 and slot_s ~= '' and redis.pcall('ZCARD', turns) == 1 then
    local terms = redis.pcall('HMGET', base, 'limit', 'override', 'current')
    -- Mostly it is that of the application, without an override or throttling, and for this shard alone (no +).
    local is_plain = terms.err or not (terms[2] or terms[3] or string.byte(terms[1] or '') == 43)
    limit = tonumber(not is_plain and late().limit_of(base, redis_now()) or terms[1]) or 0
  end
  if limit <= 0 then
    local freed = late().free_slots(base, members)
    if freed > 0 then late().hand_over(base, redis_now(), math.max(20, freed)) end
    return
  end
  redis.pcall('ZREM', running, unpack(members))
  local free = limit - (tonumber(redis.pcall('ZCARD', running)) or limit)
  if free <= 0 then return end
  -- The oldest waiting jobs, if they are to run from one queue and no other program can have named it: without a lock, their tickets
  -- (parts/slots.lua) have two texts.
  local jobs, first = {}, nil
  for k, entry in ipairs(redis.pcall('ZRANGE', base .. ':waiting:', '0', math.min(free, wanted) - 1)) do
    local queue, jid, at = string.match(entry, '^%["([^"]*)","(%x+)"%]\n()')
    if not queue or (first and queue ~= first) or string.find(queue, '\\', 1, true) then break end
    first, jobs[k] = queue, { string.sub(entry, at), jid }
  end
  for i = first and 3 or #KEYS + 1, #KEYS do
    -- The jobs of sub-queues have another order.
    if KEYS[i] == 'queue:' .. first and tonumber(ARGV[1 + acknowledged + i]) and not next_of[i] then
      next_of[i], has_next = { base = base, jobs = jobs, free = free, slot_s = slot_s, owner = string.match(members[1], '^%S+ ') }, true
      return
    end
  end
  late().hand_over(base, redis_now(), math.max(20, #members))
end

local function write_state(key, state, seconds)
  errors[#errors + 1] = redis.pcall('SET', key, state, 'EX', seconds).err
end

-- Return the values of the jobs of a part that are still those of the process.
local function values_of(at, count, positions)
  if not fenced[1] then return { unpack(ARGV, at, at + count - 1) } end
  local values = {}
  for position in string.gmatch(positions, '%d+') do
    if not is_fenced[tonumber(position)] then values[#values + 1] = ARGV[at] end
    at = at + 1
  end
  return values
end

-- Delete the locks of the jobs of a part that these still own.
local function release_locks(at, positions)
  local over = {}
  for position in string.gmatch(positions, '%d+') do
    if not is_fenced[tonumber(position)] and redis.pcall('HGET', ARGV[at], 'jid') == ARGV[at + 1] then
      over[#over + 1] = ARGV[at]
    end
    at = at + 2
  end
  if over[1] then redis.call('DEL', unpack(over)) end
end

local next_part = 3 + acknowledged + #KEYS
local held_by_jobs = ARGV[next_part - 1]
if held_by_jobs and held_by_jobs ~= '' then
  for _, pair in ipairs(cjson.decode(held_by_jobs)) do
    if not is_fenced[pair[1]] then errors[#errors + 1] = late().try_release(pair[2]) end
  end
end
while next_part <= #ARGV do
  local kind, name, seconds = ARGV[next_part], ARGV[next_part + 1], ARGV[next_part + 2]
  local count = tonumber(ARGV[next_part + 3])
  if kind == 'running' then
    -- A job may have ended meanwhile by another call, which has written a later state.
    if redis.call('LPOS', working, ARGV[next_part + 5]) then write_state(ARGV[next_part + 6], name, seconds) end
  elseif kind == 'lock' then
    attempt(release_locks, next_part + 5, ARGV[next_part + 4])
  else
    local values = values_of(next_part + 5, count, ARGV[next_part + 4])
    if kind == 'slot' then
      if values[1] then attempt(free_slots, name, values, seconds) end
    else
      for _, key in ipairs(values) do write_state(key, name, seconds) end
    end
  end
  next_part = next_part + 5 + count
end
if acknowledged > #fenced then count_processed(acknowledged - #fenced) end
local refused = {}
local reply = { held, fenced, refused }
for _, error in ipairs(errors) do
  reply[#reply + 1] = 0
  reply[#reply + 1] = error
end
if held == 0 or wanted <= 0 then return reply end

-- Mostly no queue has blocks. With a key of another type every queue may have some.
local packed = redis.call('EXISTS', 'aw:packed') == 1

-- Move jobs that wait at a limit, the next ones of a queue, to the working list, each with its slot. A refused step leaves them where
-- they are: the end of another job, or the sweep, tries again.
local function take_waiting(i, most)
  local found, payloads, slots, reached = next_of[i], {}, {}, { i - 2 }
  local waiting, running = found.base .. ':waiting:', found.base .. ':running'
  local expiry, count = string.format('%.0f', redis_now() + found.slot_s), math.min(most, #found.jobs)
  local members = {}
  for k = 1, count do
    members[k], payloads[k] = found.owner .. found.jobs[k][2], found.jobs[k][1]
    slots[2 * k - 1], slots[2 * k] = expiry, members[k]
    reached[2 * k], reached[2 * k + 1] = found.base, members[k]
  end
  if type(redis.pcall('ZADD', running, unpack(slots))) == 'table' then return 0 end
  if type(redis.pcall('LPUSH', working, unpack(payloads))) == 'table' then
    redis.pcall('ZREM', running, unpack(members))
    return 0
  end
  if type(redis.pcall('ZREMRANGEBYRANK', waiting, '0', count - 1)) == 'table' then
    for _, payload in ipairs(payloads) do redis.call('LREM', working, '1', payload) end
    redis.pcall('ZREM', running, unpack(members))
    return 0
  end
  found.free, wanted = found.free - count, wanted - count
  if redis.pcall('EXISTS', waiting) == 0 then
    found.free = 0
    redis.pcall('ZREM', found.base .. ':turns', '')
    if redis.pcall('EXISTS', found.base .. ':full') == 0 then redis.pcall('SREM', 'aw:limits:waiting', found.base) end
  end
  reply[#reply + 1] = reached
  reply[#reply + 1] = payloads
  return count
end

local function take(i, most, fair)
  -- A key of another type must not hide the queues behind it.
  local jobs
  local next_blocks = {}
  if packed and redis.pcall('HEXISTS', 'aw:packed', string.sub(KEYS[i], 7)) ~= 0 then
    jobs, next_blocks[1] = late().take_unpacked(KEYS[i], most)
    fair = nil
  elseif fair then
    jobs, next_blocks = late().turns().take_jobs(string.sub(KEYS[i], 7), most)
  else
    jobs = redis.pcall('RPOP', KEYS[i], most)
  end
  if not jobs then return 0 end
  if jobs.err then
    refused[#refused + 1] = i - 2
    return 0
  end
  if #jobs > 0 then
    local put = redis.pcall('LPUSH', working, unpack(jobs))
    if type(put) == 'table' then
      -- Refused by an ACL: Lua does not roll back, so they go back, the oldest last.
      for j = #jobs, 1, -1 do redis.call('RPUSH', KEYS[i], jobs[j]) end
      return put
    end
    wanted = wanted - #jobs
    reply[#reply + 1] = i - 2
    reply[#reply + 1] = jobs
  end
  -- Of many sub-queues some are unpacked, the others by the next calls.
  for j = 1, math.min(#next_blocks, 4) do
    reply[#reply + 1] = 2 - i
    reply[#reply + 1] = next_blocks[j]
  end
  if fair then late().turns().ring(string.sub(KEYS[i], 7)) end
  return #jobs
end

local richer, fair = {}, {}
local group = 100

-- Take jobs of queues in their order. Returns the error of a refused LPUSH, after which nothing more can be taken.
local function take_from_queues()
  for first = 3, #KEYS, group do
    local last = math.min(first + group - 1, #KEYS)
    -- Of many queues most are empty, which EXISTS says of a hundred in the time of ten RPOPs.
    if has_next or #KEYS <= group or redis.call('EXISTS', unpack(KEYS, first, last)) > 0 then
      for i = first, last do
        if wanted <= 0 then return end
        local quota = tonumber(ARGV[1 + acknowledged + i])
        if not quota then
          fair[i], quota = true, tonumber(string.sub(ARGV[1 + acknowledged + i], 2))
        end
        local most = math.min(math.abs(quota), wanted)
        local taken = next_of[i] and take_waiting(i, most) or 0
        if taken < most then
          local more = take(i, most - taken, fair[i])
          if type(more) == 'table' then return more end
          taken = taken + more
        end
        if taken == quota then richer[#richer + 1] = i end
      end
    end
  end
  for _, i in ipairs(richer) do
    if wanted <= 0 then return end
    local taken = take(i, wanted, fair[i])
    if type(taken) == 'table' then return taken end
  end
end

if not has_next then return take_from_queues() or reply end
local done, failed = pcall(take_from_queues)
-- No slot stays free while a job waits.
for _, found in pairs(next_of) do
  if found.free > 0 then late().hand_over(found.base, redis_now(), 20) end
end
return done and (failed or reply) or error(failed, 0)
