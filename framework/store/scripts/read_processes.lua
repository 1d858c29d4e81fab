-- Read the running processes of a shard: fields of their records, or the jobs that they run. Reads only.
-- KEYS    1 identities of the processes (SET)  2 registered processes (ZSET)
-- ARGV    1 cursor: '0' for the first call, else that of the reply before  2 processes at a time  3 '1': their running jobs too
--         4.. fields of the record
-- RETURN  { next cursor, { identity, { field, ... }, { thread, record of its job, ... } }, ... }
-- COST    O(processes and their running jobs), bounded by the caller
-- CRASH   nothing moves.
-- A registered process without its lease is dead: its record outlives it by up to a minute. Ruby's have no leases. A key of another
-- type is no record (parts/reply_or.lua).
local function runs(identity)
  if reply_or(redis.pcall('HSTRLEN', identity, 'info'), 0) == 0 then return false end
  return not redis.call('ZSCORE', KEYS[2], identity) or redis.call('EXISTS', 'aw:lease:' .. identity) == 1
end

-- Sidekiq writes one of the two keys, by its version; this framework writes both.
local function jobs_of(identity)
  local jobs = reply_or(redis.pcall('HGETALL', identity .. ':work'), {})
  return jobs[1] and jobs or reply_or(redis.pcall('HGETALL', identity .. ':workers'), {})
end

local page = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found = { page[1] }
for _, identity in ipairs(page[2]) do
  if runs(identity) then
    local fields = #ARGV > 3 and redis.call('HMGET', identity, unpack(ARGV, 4)) or {}
    found[#found + 1] = { identity, fields, ARGV[3] == '1' and jobs_of(identity) or {} }
  end
end
return found
