-- Admit fetched jobs that start next: each gets the slot of its class or is held, then its lock is released or renewed
-- (parts/start_lock.lua), and its state is written. The jobs are admitted one after the other, in the order of the call.
-- KEYS    1 working list, then per job, where it has them: its limit, its lock, its status key
-- ARGV    1 what the jobs of each class share (JSON list): limit and share, the most slots of one scope (both as text; no limit
--         where the class has none), ttl_s of a slot, refuses (true: a job without a slot does not wait); class, keep_ms of a
--         lock (as text; '0' releases it), hold_ms and after_ms (parts/lock_ticket.lua) while the job is held
--         then per job: class (position in the list, from 1), payload as fetched, slot member, jid, queue, since when it has
--         waited ('' when it has not yet), scope, 1 with a lock, seconds that its state is kept (0: it has none)
-- RETURN  per job { state, slots taken, limit, jobs of its scope that wait, error of its state }: 1 it may start, 0 it waits,
--         2 refused, and still in the working list; -1 fenced: the process no longer owns it, and nothing was written; 3 an
--         error, and then its text: ask for it alone
-- COST    per job that of take_slot.lua, start_locked.lua and one SET
-- CRASH   before: in the working list, as they were. after: each there with its slot, or among the waiting jobs. A job that is
--         returned to its queue before it starts frees its slot, takes its lock again and is `queued` again, in the step that
--         moves it. Called again, a job finds its slot taken, or is gone.
local classes, reply, next_key = cjson.decode(ARGV[1]), {}, 2

local function key_if(has)
  if not has then return nil end
  next_key = next_key + 1
  return KEYS[next_key - 1]
end

local function lock_while_held(class, key, jid)
  return key and { lock = { key = key, owner = jid, keep_ms = class.hold_ms, after_ms = class.after_ms }, slots = {} } or nil
end

local function admit(class, base, lock, status, first)
  local payload, member, jid, queue, since, scope = unpack(ARGV, first + 1, first + 6)
  local found
  if base then
    found = request_slot({
      working = KEYS[1], base = base, payload = payload, member = member, jid = jid, queue = queue, limit = class.limit,
      ttl_s = class.ttl_s, since = since, scope = scope, share = class.share, may_wait = not class.refuses,
      may_be_reserved = class.refuses or since ~= '',
      holds = lock_while_held(class, lock, jid),
    })
    if found.err or found[1] ~= 1 then return found end
  else
    found = { redis.call('LPOS', KEYS[1], payload) and 1 or -1, 0, 0, 0 }
    if found[1] == -1 then return found end
  end
  if lock then start_lock(lock, jid, class.class, class.keep_ms, '0') end
  if status then
    local written = redis.pcall('SET', status, 'running', 'EX', ARGV[first + 8])
    if written.err then found[5] = written.err end
  end
  return found
end

for first = 2, #ARGV, 9 do
  local class = classes[tonumber(ARGV[first])]
  local base, lock = key_if(class.limit), key_if(ARGV[first + 7] == '1')
  local status = key_if(ARGV[first + 8] ~= '0')
  local done, found = pcall(admit, class, base, lock, status, first)
  if not done or found.err then found = { 3, done and found.err or found.err or tostring(found) } end
  reply[#reply + 1] = found
end
return reply
