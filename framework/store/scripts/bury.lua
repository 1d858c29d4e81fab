-- Move a job of ours from the working list to the dead set and trim the set (Sidekiq's two limits).
-- KEYS    1 working list  2 dead set  3 status key, if the job is tracked
-- ARGV    1 payload as fetched  2 payload to store  3 most entries  4 longest stay in seconds  5 its state  6 how many seconds
--         that is kept, '' and 0 for no state  7 what it holds (parts/let_go.lua)
-- RETURN  number trimmed, or -1 when fenced: the job is not ours any more and nothing was written
-- ERROR   the set's key is of another type: the job is back in the working list (Lua does not roll back by itself)
-- COST    O(W + log N + trimmed)
-- CRASH   before: still in the working list. after: in the dead set.
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return -1 end
local now = redis.call('TIME')
local seconds = tonumber(now[1]) + tonumber(now[2]) / 1000000
local added = redis.pcall('ZADD', KEYS[2], string.format('%.6f', seconds), ARGV[2])
if type(added) == 'table' and added.err then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return added
end
if KEYS[3] then redis.pcall('SET', KEYS[3], ARGV[5], 'EX', ARGV[6]) end
let_go(ARGV[7])
local old = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.6f', seconds - tonumber(ARGV[4])))
return old + redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[3]))
