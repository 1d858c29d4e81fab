-- Hold jobs of a paused class: move them from the working list to the held jobs of the class. A job is named by its position, as in
-- admit.lua: payloads cost a script more than all else, and the caller has made the entries.
-- KEYS    1 working list  2 held jobs of the class (ZSET)  3 classes with held jobs (SET)  4 flags (HASH)
--         5 marker of a pause by a strategy (STRING)
-- ARGV    1 class name  2 flag of the operators' pause  3 its required value, '' for any  4 strategy, '' for an operator's pause
--         5 how long its marker stays in milliseconds
--         6 payload of the job that starts now, whose position is 0  7 how many more there are, neighbours in the working list: their
--         positions count from 1, the oldest  8 payload of that one  9 payload of the newest
--         then per job to hold, oldest first: its position, its entry among the held jobs, what it holds (parts/release.lua)
-- RETURN  { 1 the job at position 0 is held, 0 fenced: the process no longer owns it, -1 the flag has another value now, and nothing
--           was written;  1 the others are held, 0 not decided, as other jobs are between the neighbours, or these lie in another
--           order: ask for each alone }
-- ERROR   the key of the held jobs is of another type: the jobs are in the working list
-- COST    O(W + n log N)
-- CRASH   before: in the working list. after: held. A member is its ticket, a line of JSON [queue], [queue, copy] or
--         [queue, copy, lock] (parts/lock_ticket.lua), and its payload's bytes; the score is since when, of Redis's clock, and above every
--         other's: they go back in the order in which they came. Called again, a job is gone, or is not decided.
if ARGV[3] ~= '' then
  local stored = redis.pcall('HGET', KEYS[4], ARGV[2])
  -- An ACL that refuses the question does not say that the pause has ended.
  if type(stored) == 'table' and string.find(stored.err, 'WRONGTYPE', 1, true) ~= 1 then return stored end
  if stored ~= ARGV[3] then return { -1, 0 } end
end
-- In whole microseconds: a number with a fraction takes four times as long to format.
local working, set, since = KEYS[1], KEYS[2], math.floor(redis_now() * 1000000 + 0.5)
-- What a script takes out has these bytes until it goes: a payload is JSON.
local MARK = '\0held'
-- The first write is one that is allowed at maxmemory, and lets the others pass. Where an ACL refuses it, nothing was written.
redis.call('LREM', working, '-1', MARK)

-- Neighbours are all still there if as many entries as they are lie from the oldest to the newest.
local first, others, oldest, newest = redis.call('LPOS', working, ARGV[6], 'RANK', -1), tonumber(ARGV[7])
if others > 0 then
  oldest, newest = redis.call('LPOS', working, ARGV[8], 'RANK', -1), redis.call('LPOS', working, ARGV[9])
end
local has_others = oldest and newest and oldest - newest == others - 1
-- The process may know them in another order than they lie here: each must lie where the caller counts it.
if has_others then
  local there = redis.call('LRANGE', working, newest, oldest)
  for at = 10, #ARGV, 3 do
    local position = tonumber(ARGV[at])
    local payload = there[others + 1 - position]
    if position > 0 and string.sub(ARGV[at + 1], -#payload - 1) ~= '\n' .. payload then has_others = false end
  end
end
-- One of the others has the very same bytes.
if first and has_others and first <= oldest and first >= newest then first = nil end

local function score_of(microseconds)
  return string.format('%d.%06d', microseconds / 1000000, microseconds % 1000000)
end

if redis.call('ZCOUNT', set, score_of(since), '+inf') > 0 then
  local last = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')[2]
  -- A score that is no time must not end in one that is no number.
  since = math.min(math.floor(tonumber(last) * 1000000 + 0.5) + 1, 9007199254000000)
end
local entries, jobs, places, n = {}, {}, {}, 0
for at = 10, #ARGV, 3 do
  local position = tonumber(ARGV[at])
  local place = position == 0 and first or position > 0 and has_others and oldest + 1 - position
  if place then
    n = n + 1
    entries[2 * n - 1], entries[2 * n] = score_of(since + n), ARGV[at + 1]
    jobs[n], places[n] = at, place
  end
end
local reply = { first and 1 or 0, has_others and 1 or 0 }
if n == 0 then return reply end

for i = 1, n do redis.call('LSET', working, places[i], MARK) end
local added = redis.pcall('ZADD', set, 'NX', unpack(entries))
if type(added) == 'table' then
  for i = 1, n do redis.call('LSET', working, places[i], string.match(entries[2 * i], '\n(.*)')) end
  return added
end
redis.call('LREM', working, '-' .. n, MARK)
-- Two jobs of the very same bytes stay two: one of them has a ticket of its own.
for i = 1, added < n and n or 0 do
  local score, entry, copy = entries[2 * i - 1], entries[2 * i], 1
  if tonumber(redis.call('ZSCORE', set, entry)) ~= tonumber(score) then
    local line, payload = string.match(entry, '^([^\n]*)(.*)$')
    local ticket = cjson.decode(line)
    repeat
      copy = copy + 1
    until redis.call('ZADD', set, 'NX', score, cjson.encode({ ticket[1], copy, ticket[3] }) .. payload) == 1
  end
end
redis.pcall('SADD', KEYS[3], ARGV[1])
if ARGV[4] ~= '' then redis.pcall('SET', KEYS[5], ARGV[4], 'PX', ARGV[5]) end
local failed
for i = 1, n do
  local holds = ARGV[jobs[i] + 2]
  if holds ~= '' then failed = late().try_release(holds) or failed end
end
return failed and redis.error_reply(failed) or reply
