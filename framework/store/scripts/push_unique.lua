-- Push jobs of a deduplicated class: each takes its lock in the step that writes it, or is dropped as a duplicate.
-- KEYS    1 set of queue names  2 the queue, or the schedule set
-- ARGV    1 number of jobs n (1,000 at most)  2 queue name, or NAME~KEY of a sub-queue (parts/turns.lua), '' for the schedule set
--         3 key that notes that this step was done, '' for none  4 for how many milliseconds
--         of all locks: 5 class  6 for how many milliseconds  7 '1' to drop duplicates, '' to write them with the owner's jid
--         8 counter of dropped duplicates  9 positions, due time, delay, status, seconds until the expiry and batch of all jobs (JSON), '' for none of these
--         10 n lock keys, then n jids (JSON): as arguments they would cost both sides more; then, of a push to the shard to which
--         such jobs move, an object of what find_owners.lua has found on the other one, by the place of the job  then n payloads
--         then, where jobs differ in their positions, due time, delay or status, n of these (JSON), in place of those of all jobs
-- RETURN  per job: '' it is in, with its lock; '>' it is nowhere, as such jobs have moved to another shard, which only a caller without
--         the object of ARGV 10 does not know; else the jid of the job whose duplicate it is: it is nowhere, or, where the terms
--         do not drop, in, and says so. Behind them the error of `queues`, where the queue's name could not be put in: the jobs are in.
--         Of a step that was done before, by a call whose reply was lost, the same again.
-- ERROR   the server is full (this is a push, and may be refused), or the destination's key is of another type: nothing was written
-- COST    O(n), O(n log N) into the schedule set; some 3 us a job
-- CRASH   before: neither job nor lock. after: both. A job that already has the lock was written by an earlier try whose reply was lost, and is
--         not written again; with a key that notes the step none of its jobs is, even where a run has released its lock.
-- The first write is one that a full server refuses, and the locks come after it: a refused push leaves no lock, although Lua does
-- not roll back. All jobs go in one command, so that all are in or none. Most pushes have no duplicate: one EXISTS for all keys then
-- saves a read and a DEL per job, and the payloads go from ARGV into the command as they are.
local n, queue, done_key = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local before = done_key ~= '' and redis.call('GET', done_key)
if before then return cjson.decode(before) end
local class, ttl_ms, drops = ARGV[5], ARGV[6], ARGV[7] ~= ''
local names, now = cjson.decode(ARGV[10]), redis_now()
local former = names[2 * n + 1]
local shared = ARGV[9] ~= '' and cjson.decode(ARGV[9]) or nil
local any_details = shared or ARGV[11 + n]

-- Return what differs between jobs, nil for nothing.
local function details_of(i)
  local own = ARGV[10 + n + i]
  return own and cjson.decode(own) or shared
end

-- Return when a job for the schedule set is due, in seconds of this server's clock: at a time or after a delay; else nil.
local function due_of(details)
  if details.delay then return now + tonumber(details.delay) end
  return details.due and tonumber(details.due)
end

-- Return when a job is too old to begin, nil for never.
local function expiry_of(details)
  return details.expires_in and { expiry = (due_of(details) or now) + tonumber(details.expires_in) }
end

-- Return for how many milliseconds a lock lasts: until its job is due and for its ttl.
local function lock_ms(details)
  local due = due_of(details)
  if not due then return ttl_ms end
  return string.format('%.0f', math.min(math.floor(ttl_ms + math.max(0, due - now) * 1000), 9007199254740991))
end

-- Return the owner on the other shard. One on its way from there to here counts until it is here: then its lock is.
local function former_owner(i)
  local found = former and former[tostring(i)]
  if found and (not found[2] or redis.call('EXISTS', found[2]) == 0) then return found[1] end
end

local all_free = redis.call('EXISTS', unpack(names, 1, n)) == 0
local found, given, added, dropped, unchanged, write = {}, {}, {}, {}, queue ~= '', {}
for i = 1, n do
  local key, jid, data = names[i], names[n + i], ARGV[10 + i]
  local owner, moved = given[key], nil
  if not owner and not all_free then owner, moved = holder_of(key, jid) end
  owner = owner or former_owner(i)
  found[i] = ''
  moved = moved and not former
  if moved then
    found[i], unchanged = '>', false
  elseif owner then
    unchanged = false
    if owner ~= jid then
      found[i] = owner
      if drops then dropped[#dropped + 1] = i else data = late().marked(data, owner) end
    end
  end
  -- Its own lock: an earlier try has written the job.
  if not moved and (not owner or (owner ~= jid and not drops)) then
    given[key] = owner or jid
    if queue == '' then write[#write + 1] = string.format('%.6f', due_of(details_of(i))) end
    write[#write + 1] = data
    added[#added + 1] = i
  end
end
if #added > 0 then
  local put
  if queue == '' then
    put = redis.pcall('ZADD', KEYS[2], unpack(write))
  elseif unchanged then
    put = redis.pcall('LPUSH', KEYS[2], unpack(ARGV, 11, 10 + n))
  else
    put = redis.pcall('LPUSH', KEYS[2], unpack(write))
  end
  if type(put) == 'table' then return put end
end
local since = string.format('%.6f', now)
for _, i in ipairs(added) do
  local key, jid = names[i], names[n + i]
  local details = any_details and details_of(i)
  if found[i] == '' then
    if not all_free then redis.call('DEL', key) end
    write_lock(key, jid, class, details and lock_ms(details) or ttl_ms, since, details and expiry_of(details))
  end
  if details and details.status then redis.pcall('SET', 'aw:status:' .. jid, unpack(details.status)) end
end
for _, i in ipairs(dropped) do
  local details = any_details and details_of(i)
  local positions = details and details.positions or {}
  local noted = late().drop_duplicate({ key = names[i], positions = positions, counter = ARGV[8] })
  if type(noted) == 'table' and #added == 0 then return noted end
end
if done_key ~= '' then redis.pcall('SET', done_key, cjson.encode(found), 'PX', ARGV[4]) end
-- A name that is missing in `queues` only hides the queue from Sidekiq's pages: no reason to refuse written jobs.
local listed = #added > 0 and queue ~= '' and redis.pcall('SADD', KEYS[1], queue)
if type(listed) == 'table' then found[n + 1] = listed.err end
if #added > 0 and string.find(queue, '~', 1, true) then late().arrive(queue) end
return found
