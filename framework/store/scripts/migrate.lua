-- Move the oldest jobs of a queue that was set aside, each to the left end of its next queue (its own, when it stays there), and
-- return the next ones.
-- KEYS    1 lease of the migration  2 its working list, where the whole queue was put  3 set of queue names
--         4 the queue itself  5.. further queues
-- ARGV    1 lease in ms  2 most jobs to show  3 most bytes to show (one job is always shown)  4 number of jobs n  5 number of queues q
--         then the q names of the queues from KEYS 4 on, '' for a list of jobs that leave the shard
--         then n payloads as they were shown, oldest first; n payloads to store, '' where the bytes stay; n positions of their
--         queues from KEYS 4 on (1 is the queue itself)
-- RETURN  { 1 moved, 0 the list's right end is not what was shown (another migration moved it), -1 the lease has expired,
--           -2 the queue's own key is no longer a list; in all but the first nothing was moved;
--           { positions of queues whose key is no list: their jobs stayed, as they were }, next payloads, oldest first ... }
-- COST    O(n + shown), from the ends of lists: their length does not matter
-- CRASH   before: in the working list. after: in a queue. Reapers put the rest back once the lease has expired.
-- PEXPIRE first: proves that the caller owns the list, and at maxmemory lets LPUSH pass.
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 0 then return { -1, {} } end
local n, q = tonumber(ARGV[4]), tonumber(ARGV[5])
local expected, stored, places = 5 + q, 5 + q + n, 5 + q + n + n
local refused, closed = {}, {}

-- In few reads: each finds its place anew, and copies what it returns. A read aims at the bytes that are left, by those so far.
local function show(state)
  local reply, size, shown, step = { state, refused }, 0, 0, 1
  local most_jobs, most_bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
  while shown < most_jobs do
    local page = redis.call('LRANGE', KEYS[2], -shown - math.min(step, most_jobs - shown), -shown - 1)
    if #page == 0 then break end
    for i = #page, 1, -1 do
      size = size + #page[i]
      if shown > 0 and size > most_bytes then return reply end
      reply[#reply + 1], shown = page[i], shown + 1
    end
    step = math.max(1, math.min(4 * step, math.floor((most_bytes - size) * shown / size)))
  end
  return reply
end

local function none(key)
  local kind = redis.call('TYPE', key).ok
  return kind ~= 'list' and kind ~= 'none'
end

if none(KEYS[4]) then return { -2, {} } end
local there = n > 0 and redis.call('LRANGE', KEYS[2], -n, -1) or {}
for i = 1, n do
  if there[n + 1 - i] ~= ARGV[expected + i] then return show(0) end
end
for i = 2, q do
  if none(KEYS[3 + i]) then
    refused[#refused + 1] = i
    closed[i] = true
  end
end
local arriving = {}
for i = 1, q do arriving[i] = {} end
for i = 1, n do
  local place, data = tonumber(ARGV[places + i]), ARGV[stored + i]
  if closed[place] then place, data = 1, '' end
  if data == '' then data = ARGV[expected + i] end
  arriving[place][#arriving[place] + 1] = data
end
-- No RPOP, which would return all of them.
if n > 0 then redis.call('LTRIM', KEYS[2], 0, -n - 1) end
for i = 1, q do
  if #arriving[i] > 0 then
    local put = redis.pcall('LPUSH', KEYS[3 + i], unpack(arriving[i]))
    -- Where an ACL refuses LPUSH, the wrong end is better than losing the job.
    if type(put) == 'table' then redis.call('RPUSH', KEYS[3 + i], unpack(arriving[i])) end
    if ARGV[5 + i] ~= '' then
      redis.pcall('SADD', KEYS[3], ARGV[5 + i])
      -- A sub-queue that was set aside has lost its turn.
      arrive(ARGV[5 + i])
    end
  end
end
return show(1)
