-- Move a job from this process's working list to the dead set, or to `interrupted`, and trim the set (Sidekiq's two limits).
-- KEYS    1 working list  2 the set  3 status key, if the job is tracked
-- ARGV    1 payload as fetched  2 payload to store  3 most entries  4 longest stay in seconds
--         5 most refusals of the business (parts/trim.lua), when the job is one, else ''
--         6 its state  7 how many seconds that is kept, '' and 0 for no state  8 what it holds (parts/release.lua)
-- RETURN  number trimmed, or -1 when fenced: the process no longer owns the job, and nothing was written
-- ERROR   the set's key is of another type: the job is back in the working list (Lua does not roll back by itself)
-- COST    O(W + log N + trimmed)
-- CRASH   before: still in the working list. after: in the set.
-- Before the removal: an ACL may refuse it.
local now = redis_now()
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return -1 end
local added = redis.pcall('ZADD', KEYS[2], string.format('%.6f', now), ARGV[2])
if type(added) == 'table' and added.err then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return added
end
if KEYS[3] then redis.pcall('SET', KEYS[3], ARGV[6], 'EX', ARGV[7]) end
release(ARGV[8])
local most_business = tonumber(ARGV[5])
local gone = most_business and note_business(KEYS[2], now, ARGV[2], most_business) or 0
return gone + trim(KEYS[2], now, tonumber(ARGV[3]), tonumber(ARGV[4]))
