-- Read the sizes of queues, and when the next job of each entered it. Reads only.
-- KEYS    1 names of the queues (SET)  2 paused queues (SET)  3 jobs of queues with blocks (HASH)  4 blocks of these (HASH)
-- ARGV    1 cursor: '0' for the first call, else that of the reply before  2 queues at a time  3 '1': say when jobs entered
--         4.. these queues and their sub-queues only, listed or not
-- RETURN  { now, next cursor, paused queues, { queue, jobs, when the next one entered it, ... } }
-- COST    O(queues), bounded by the caller, and by the paused ones in the first call
-- CRASH   nothing moves.
-- A key of another type has no jobs (parts/reply_or.lua).
local cursor, at_once, with_times = ARGV[1], ARGV[2], ARGV[3] == '1'
local wanted, is_first = {}, ARGV[1] == '0'
for i = 4, #ARGV do wanted[ARGV[i]] = true end

local packed = redis.call('EXISTS', KEYS[3]) == 1
local function number_of(key, name)
  return tonumber(reply_or(redis.pcall('HGET', key, name), 0)) or 0
end

local found, seen = {}, {}
local function add(name)
  if seen[name] then return end
  seen[name] = true
  local jobs = reply_or(redis.pcall('LLEN', 'queue:' .. name), 0)
  found[#found + 1] = name
  found[#found + 1] = jobs > 0 and packed and jobs + math.max(0, number_of(KEYS[3], name) - number_of(KEYS[4], name)) or jobs
  found[#found + 1] = jobs > 0 and with_times and entered_at(reply_or(redis.pcall('LINDEX', 'queue:' .. name, -1), '')) or ''
end

local page = reply_or(redis.pcall('SSCAN', KEYS[1], cursor, 'COUNT', at_once), { '0', {} })
for _, name in ipairs(page[2]) do
  if #ARGV < 4 or wanted[name] or wanted[string.match(name, '^(.-)~') or name] then add(name) end
end
local paused = is_first and reply_or(redis.pcall('SMEMBERS', KEYS[2]), {}) or {}
if is_first then
  for i = 4, #ARGV do add(ARGV[i]) end
  -- A paused queue may have lost its place in the list.
  for i = 1, #ARGV < 4 and #paused or 0 do add(paused[i]) end
end
return { string.format('%.6f', redis_now()), page[1], paused, found }
