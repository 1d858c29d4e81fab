-- Push jobs that wait in the schedule set for further pushes: a push replaces the equal job that waits there (debounce), or adds
-- the items of its last argument to those of that job (accumulate).
-- KEYS    1 schedule set
-- ARGV    1 number of jobs n (1,000 at most)  2 key that notes that this step was done, '' for none  3 for how many milliseconds
--         of all jobs: 4 class  5 for how many milliseconds a lock lasts after its job is due  6 'debounce' or 'accumulate'
--         7 most seconds between the first push of a window and its job, 0 for no maximum  8 most items  9 most bytes of a payload
--         10 counter of jobs that were replaced or added  11 due time, delay, status and seconds until the expiry of all jobs (JSON)
--         12 n lock keys, n jids, then with 'accumulate' n places of the items in the payloads, 'start,end,count' (JSON)
--         then n payloads, then, where jobs differ in these, n of them (JSON)
-- RETURN  per job '' where no equal job waited: it waits now; else with 'debounce' the jid of the job that it has replaced, with
--         'accumulate' the jid of the job that has its items. Of a step that was done before, by a call whose reply was lost, the same.
-- ERROR   the server is full (this is a push, and may be refused), or the set's key is of another type: nothing was written
-- COST    O(n * (log N + bytes of a payload))
-- CRASH   before: the job that waited is as it was. after: the other is in its place. At every instant one of them is in the set.
--         The lock only says which member of the set to look for: where the set does not have it, the job has left for its queue
--         (or another writer has changed it), and a window of its own begins. So a lost lock costs one more run, and never an argument.
-- ZADD comes before ZREM: the first write is one that a full server refuses, and Lua does not roll back.
local n, done_key = tonumber(ARGV[1]), ARGV[2]
local before = done_key ~= '' and redis.call('GET', done_key)
if before then return cjson.decode(before) end
local class, ttl_ms, accumulates = ARGV[4], tonumber(ARGV[5]), ARGV[6] == 'accumulate'
local max_window, max_items, max_bytes, counter = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
local names, now, found = cjson.decode(ARGV[12]), redis_now(), {}
local shared = ARGV[11] ~= '' and cjson.decode(ARGV[11]) or {}

-- Return the note of the lock on the job that waits, an empty table for none: its jid, member, first push, items and their end.
local function read_note(key)
  local fields = redis.pcall('HMGET', key, 'jid', 'member', 'first', 'items', 'end', 'expiry')
  if fields.err or not fields[1] then return {} end
  local waits = fields[2] and redis.call('ZSCORE', KEYS[1], fields[2]) or nil
  return { jid = fields[1], member = fields[2], due = waits, first = tonumber(fields[3] or ''),
    items = tonumber(fields[4] or ''), ends = tonumber(fields[5] or ''), expiry = tonumber(fields[6] or '') }
end

local function write_note(key, jid, member, first, due, items, ends, came, expiry)
  redis.call('DEL', key)
  local last_ms, since = ttl_ms + math.max(0, due - now) * 1000, string.format('%.6f', now)
  write_lock(key, jid, class, string.format('%.0f', last_ms), since, { expiry = expiry })
  redis.call('HSET', key, 'member', member, 'first', string.format('%.6f', first))
  if ends then redis.call('HSET', key, 'items', items, 'end', ends) end
  if came > 0 then redis.call('HSET', key, 'duplicates', came) end
end

local function came_meanwhile(key)
  return (tonumber(redis.call('HGET', key, 'duplicates') or '') or 0) + 1
end

-- Put a member into the set in the place of another, nil for none. Returns the error of a full server.
local function put(due, member, former)
  local added = redis.pcall('ZADD', KEYS[1], due, member)
  if type(added) == 'table' then return added end
  if former then redis.call('ZREM', KEYS[1], former) end
end

for i = 1, n do
  local key, jid, data = names[i], names[n + i], ARGV[12 + i]
  local own, note = ARGV[12 + n + i], read_note(key)
  local details = own and cjson.decode(own) or shared
  local due = details.delay and now + tonumber(details.delay) or tonumber(details.due)
  local starts, ends, count = string.match(names[2 * n + i] or '', '^(%d+),(%d+),(%d+)$')
  found[i] = ''
  local fits = accumulates and note.due and note.ends and ends and note.items + count <= max_items
    -- A job that will not run gets no items.
    and #note.member + ends - starts <= max_bytes and holder_of(key)
  -- Its own lock: an earlier try has written the job.
  if note.jid ~= jid then
    local failed
    if fits then
      found[i] = note.jid
      local items = string.sub(data, starts + 1, ends)
      local text = (note.items > 0 and items ~= '' and ',' or '') .. items
      if text ~= '' then
        local member = string.sub(note.member, 1, note.ends) .. text .. string.sub(note.member, note.ends + 1)
        failed = put(note.due, member, note.member)
        if failed then return failed end
        write_note(key, note.jid, member, note.first or now, tonumber(note.due), note.items + count, note.ends + #text,
          came_meanwhile(key), note.expiry)
      end
    else
      local replaces = note.due and not accumulates
      local first = replaces and note.first or now
      if max_window > 0 then due = math.min(due, first + max_window) end
      failed = put(string.format('%.6f', due), data, replaces and note.member or nil)
      if failed then return failed end
      if replaces then found[i] = note.jid end
      write_note(key, jid, data, first, due, tonumber(count or '0'), tonumber(ends or ''), replaces and came_meanwhile(key) or 0,
        details.expires_in and due + tonumber(details.expires_in))
      if details.status then
        redis.pcall('SET', 'aw:status:' .. jid, unpack(details.status))
        if replaces then redis.pcall('SET', 'aw:status:' .. note.jid, 'discarded', 'XX', 'KEEPTTL') end
      end
    end
    if found[i] ~= '' then redis.pcall('HINCRBY', 'aw:counters', counter, 1) end
  end
end
if done_key ~= '' then redis.pcall('SET', done_key, cjson.encode(found), 'PX', ARGV[3]) end
return found
