-- Read the figures of a shard for Prometheus: queues, sets, processes, runs, and what the features add. Reads only.
-- KEYS    HASHes of runs by class and minute (Sidekiq's Metrics page)
-- ARGV    1 cursor of the queues: '0' for the first call, else that of the reply before  2 queues at a time  3 most processes
--         4.. the argument of each feature's part
-- RETURN  { now, next cursor, { queue, jobs, when the next one entered it, ... } }; the first call goes on:
--         { ..., 1 if processes were left out, paused queues,
--         { jobs, first score } of schedule, retry, dead, interrupted, { all runs, failed ones },
--         { identity, last heartbeat, 1 if it has its lease, else its jobs in flight, busy, slots, quiet, runs by queue, KiB, running jobs by queue, seconds of its clock ahead,
--           when it found that data were lost, ... },
--         HASHes of runs, counters of the policies, replies of the features }
-- COST    O(queues + processes + classes + what the parts say), each bounded. No part reads each job of a key.
-- CRASH   nothing moves.
local MOST_CLASSES, MOST_COUNTERS = 6000, 20000
local now, left_out = redis_now(), 0
local cursor, queues_at_once, most_processes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local function count(reply)
  return type(reply) == 'number' and reply or 0
end

local function text(reply)
  return (type(reply) == 'string' or type(reply) == 'number') and reply or ''
end

-- Most shards have no queue with blocks of jobs (wire/blocks.py).
local packed = redis.call('EXISTS', 'aw:packed') == 1

local function number_of(key, name)
  return tonumber(redis.pcall('HGET', key, name)) or 0
end

local function queue_rows()
  local page, found = redis.pcall('SSCAN', 'queues', cursor, 'COUNT', queues_at_once), {}
  if page.err then return '0', found end
  for _, name in ipairs(page[2]) do
    local jobs = count(redis.pcall('LLEN', 'queue:' .. name))
    if jobs > 0 and packed then
      jobs = jobs + number_of('aw:packed', name) - number_of('aw:packed:blocks', name)
    end
    found[#found + 1] = name
    found[#found + 1] = jobs
    found[#found + 1] = jobs > 0 and entered_at(redis.pcall('LINDEX', 'queue:' .. name, -1)) or ''
  end
  return page[1], found
end

local function set_row(key)
  local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  return { count(redis.pcall('ZCARD', key)), first[2] or '' }
end

-- Return the row of the schedule set with the deferred jobs in blocks (fetch/deferred_blocks.py).
local function schedule_row()
  local row, blocks = set_row('schedule'), set_row('aw:deferred_packed')
  if blocks[1] == 0 then return row end
  row[1] = row[1] + blocks[1] + number_of('aw:packed:held', 'aw:deferred_packed')
  if row[2] == '' or tonumber(blocks[2]) < tonumber(row[2]) then row[2] = blocks[2] end
  return row
end

-- Return the jobs in flight of a process without a lease: another process recovers them soon.
local function orphans(identity)
  local jobs = count(redis.pcall('LLEN', 'aw:working:' .. identity))
  local fields = redis.pcall('HKEYS', 'aw:process:' .. identity)
  for _, field in ipairs(fields.err and {} or fields) do
    local capsule = string.match(field, '^capsule:(.*)$')
    if capsule then jobs = jobs + count(redis.pcall('LLEN', 'aw:working:' .. identity .. '/' .. capsule)) end
  end
  return jobs
end

local function process_rows(most)
  local beats, names, found = {}, {}, {}
  local registered = redis.pcall('ZRANGE', 'aw:processes', 0, most - 1, 'WITHSCORES')
  for i = 1, registered.err and 0 or #registered, 2 do
    beats[registered[i]] = registered[i + 1]
    names[#names + 1] = registered[i]
  end
  local listed, more = some_members('processes', most)
  if more then left_out = 1 end
  for _, name in ipairs(listed) do
    if not beats[name] then names[#names + 1] = name end
  end
  for _, name in ipairs(names) do
    local record = redis.pcall('HMGET', name, 'busy', 'concurrency', 'quiet', 'aw_runs', 'rss', 'aw_busy', 'aw_clock_s', 'aw_lost_at')
    found[#found + 1] = name
    found[#found + 1] = beats[name] or ''
    local leased = count(redis.pcall('EXISTS', 'aw:lease:' .. name))
    found[#found + 1] = leased
    found[#found + 1] = leased == 0 and beats[name] and orphans(name) or 0
    -- Sidekiq before 8.1.2 has its slots among its other facts.
    if not record.err and record[1] and not record[2] then
      record[2] = string.match(text(redis.pcall('HGET', name, 'info')), '"concurrency": ?(%d+)')
    end
    for i = 1, 8 do found[#found + 1] = record.err and '' or text(record[i]) end
  end
  return found
end

local function hash(key, most)
  if count(redis.pcall('HLEN', key)) > most then return {} end
  local found = redis.pcall('HGETALL', key)
  return found.err and {} or found
end

local next_cursor, queues = queue_rows()
if cursor ~= '0' then return { string.format('%.6f', now), next_cursor, queues } end
local processes = process_rows(most_processes)
local runs = {}
for i, key in ipairs(KEYS) do runs[i] = hash(key, MOST_CLASSES) end
return {
  string.format('%.6f', now), next_cursor, queues, left_out, (some_members('paused', queues_at_once)),
  { schedule_row(), set_row('retry'), set_row('dead'), set_row('interrupted') },
  { text(redis.pcall('GET', 'stat:processed')), text(redis.pcall('GET', 'stat:failed')) },
  processes, runs, hash('aw:counters', MOST_COUNTERS), feature_figures(now, 4),
}
