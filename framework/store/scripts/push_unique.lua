-- Push jobs of a deduplicated class: each takes its lock in the step that writes it, or is dropped as a duplicate.
-- KEYS    1 set of queue names  2 the queue, or the schedule set
-- ARGV    1 number of jobs n (1,000 at most)  2 queue name, '' for the schedule set
--         3 key that notes that this step was done, '' for none  4 for how many milliseconds
--         5 terms of all locks (JSON; parts/lock_request.lua), without key and jid
--         then n payloads  then n lock keys  then n jids
--         then, where jobs differ in more, n times positions, due time, delay and status (JSON), in place of those of the terms
-- RETURN  per job: '' it is in, with its lock; else the jid of the job whose duplicate it is: it is nowhere, or, where the terms
--         do not drop, in, and says so. Behind them the error of `queues`, where the queue's name could not be put in: the jobs are in.
--         Of a step that was done before, by a call whose reply was lost, the same again.
-- ERROR   the server is full (this is a push, and may be refused), or the destination's key is of another type: nothing was written
-- COST    O(n), O(n log N) into the schedule set; some 3 us a job
-- CRASH   before: neither job nor lock. after: both. A job that already has the lock was written by an earlier try whose reply was lost, and is
--         not written again; with a key that notes the step none of its jobs is, even where a run has released its lock.
-- The first write is one that a full server refuses, and the locks come after it: a refused push leaves no lock, although Lua does
-- not roll back. All jobs go in one command, so that all are in or none.
local n, queue, done_key = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local before = done_key ~= '' and redis.call('GET', done_key)
if before then return cjson.decode(before) end
local terms, now = cjson.decode(ARGV[5]), redis_now()

-- Return the lock request of a job; the table is the same for all.
local function request_of(i)
  local own = ARGV[5 + 3 * n + i]
  if own then
    own = cjson.decode(own)
    terms.positions, terms.due, terms.delay, terms.status = own.positions, own.due, own.delay, own.status
  end
  terms.key, terms.jid = ARGV[5 + n + i], ARGV[5 + 2 * n + i]
  return terms
end

-- Return when a job for the schedule set is due, in seconds of this server's clock: at a time or after a delay; else nil.
local function due_of(request)
  if request.delay then return now + tonumber(request.delay) end
  return request.due and tonumber(request.due)
end

-- Return for how many milliseconds a lock lasts: until its job is due and for its ttl.
local function lock_ms(request)
  local keep_ms, due = request.ttl_ms, due_of(request)
  if due then keep_ms = math.min(math.floor(keep_ms + math.max(0, due - now) * 1000), 9007199254740991) end
  return string.format('%.0f', keep_ms)
end

local found, given, added, dropped, write = {}, {}, {}, {}, {}
for i = 1, n do
  local request, data = request_of(i), ARGV[5 + i]
  local owner = given[request.key] or owner_of(request.key)
  found[i] = ''
  if owner and owner ~= request.jid then
    found[i] = owner
    if request.drops then dropped[#dropped + 1] = i else data = marked(data, owner) end
  end
  -- Its own lock: an earlier try has written the job.
  if owner ~= request.jid and not (owner and request.drops) then
    given[request.key] = owner or request.jid
    if queue == '' then write[#write + 1] = string.format('%.6f', due_of(request)) end
    write[#write + 1] = data
    added[#added + 1] = i
  end
end
if #added > 0 then
  local put
  if queue == '' then
    put = redis.pcall('ZADD', KEYS[2], unpack(write))
  else
    put = redis.pcall('LPUSH', KEYS[2], unpack(write))
  end
  if type(put) == 'table' then return put end
end
for _, i in ipairs(added) do
  local request = request_of(i)
  if found[i] == '' then take_lock(request.key, request.jid, request.class, lock_ms(request), now) end
  if request.status then redis.pcall('SET', 'aw:status:' .. request.jid, unpack(request.status)) end
end
for _, i in ipairs(dropped) do
  local noted = drop_duplicate(request_of(i))
  if type(noted) == 'table' and #added == 0 then return noted end
end
if done_key ~= '' then redis.pcall('SET', done_key, cjson.encode(found), 'PX', ARGV[4]) end
-- A name that is missing in `queues` only hides the queue from Sidekiq's pages: no reason to refuse written jobs.
local listed = #added > 0 and queue ~= '' and redis.pcall('SADD', KEYS[1], queue)
if type(listed) == 'table' then found[n + 1] = listed.err end
return found
