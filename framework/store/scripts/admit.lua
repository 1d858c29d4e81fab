-- Admit fetched jobs that start next: each gets the slot of its class or is held, then its lock is released or renewed
-- (parts/start_lock.lua), and its state is written. The jobs are admitted one after the other, in the order of the call.
-- KEYS    1 working list, then per class that has one: its limit, then per job, where it has them: its lock, its status key
-- ARGV    1 JSON: { what the jobs of each class share, the class of each job as its position in that list, from 1 }; of a class:
--         queue, class (its name); of one with a limit: limit and share, the most slots of one scope (both as text), ttl_s of a
--         slot, owner of the working list, refuses (true: a job without a slot does not wait); of one whose jobs have a lock:
--         keep_ms (as text; '0' releases it), period (true: until_expired), hold_ms and after_ms (parts/lock_ticket.lua) while a job is held; of a tracked one:
--         status_s, the seconds that a state is kept; waited: each of its jobs has two arguments more
--         then per job: payload as fetched, jid; and where `waited` says so, since when it has waited ('' when it has not yet), scope
-- RETURN  1 if every job may start; else per job 1, or { state, slots taken, limit, jobs of its scope that wait, error of its state }:
--         state 1 it may start, 0 it waits, 2 refused, and still in the working list; -1 fenced: the process no longer owns it,
--         and nothing was written; 3 an error, and then its text: ask for it alone
-- COST    per job that of take_slot.lua, start_locked.lua and one SET
-- CRASH   before: in the working list, as they were. after: each there with its slot, or among the waiting jobs. A job that is
--         returned to its queue before it starts frees its slot, takes its lock again and is `queued` again, in the step that
--         moves it. Called again, a job finds its slot taken, or is gone.
local shared, reply, all_start, next_key, next_value = cjson.decode(ARGV[1]), {}, true, 2, 2
local classes = shared[1]

local function key_if(has)
  if not has then return nil end
  next_key = next_key + 1
  return KEYS[next_key - 1]
end

local function lock_while_held(class, key, jid)
  return key and { lock = { key = key, owner = jid, keep_ms = class.hold_ms, after_ms = class.after_ms }, slots = {} } or nil
end

local function admit(class, lock, status, payload, jid, since, scope)
  local found
  if class.limit then
    found = request_slot({
      working = KEYS[1], base = class.base, payload = payload, member = class.owner .. ' ' .. jid, jid = jid, queue = class.queue,
      limit = class.limit, ttl_s = class.ttl_s, since = since, scope = scope, share = class.share, may_wait = not class.refuses,
      may_be_reserved = class.refuses or since ~= '',
      holds = lock_while_held(class, lock, jid),
    })
    if found.err or found[1] ~= 1 then return found end
  else
    found = { redis.call('LPOS', KEYS[1], payload) and 1 or -1, 0, 0, 0 }
    if found[1] == -1 then return found end
  end
  if lock then start_lock(lock, jid, class.class, class.keep_ms, '0', nil, class.period) end
  if status then
    local written = redis.pcall('SET', status, 'running', 'EX', class.status_s)
    if written.err then
      found[5] = written.err
      return found
    end
  end
  return 1
end

for _, class in ipairs(classes) do class.base = key_if(class.limit) end
for i, number in ipairs(shared[2]) do
  local class, first = classes[number], next_value
  next_value = first + (class.waited and 4 or 2)
  local since, scope = '', ''
  if class.waited then since, scope = ARGV[first + 2], ARGV[first + 3] end
  local lock, status = key_if(class.keep_ms), key_if(class.status_s)
  local done, found = pcall(admit, class, lock, status, ARGV[first], ARGV[first + 1], since, scope)
  if not done or (found ~= 1 and found.err) then found = { 3, done and found.err or found.err or tostring(found) } end
  reply[i] = found
  all_start = all_start and found == 1
end
return all_start and 1 or reply
