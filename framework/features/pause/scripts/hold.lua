-- Hold a job of a paused class: move it from the working list to the held jobs of its class.
-- KEYS    1 working list  2 held jobs of the class (ZSET)  3 classes with held jobs (SET)  4 flags (HASH)
--         5 marker of a pause by a strategy (STRING)
-- ARGV    1 payload as fetched  2 queue name  3 class name  4 flag of the operators' pause  5 its required value, '' for any
--         6 strategy, '' for an operator's pause  7 how long its marker stays in milliseconds
--         8 what the job holds (parts/release.lua)
-- RETURN  1 held, 0 fenced: the process no longer owns the job, -1 the flag has another value now; then nothing was written
-- ERROR   the key of the held jobs is of another type: the job is back in the working list
-- COST    O(W + log N)
-- CRASH   before: in the working list. after: held. A member is its ticket, a line of JSON [queue], [queue, copy] or
--         [queue, copy, lock] (parts/lock_ticket.lua), and its payload's bytes; the score is since when, of Redis's clock, and above every
--         other's: they go back in the order in which they came.
if ARGV[5] ~= '' then
  local stored = redis.pcall('HGET', KEYS[4], ARGV[4])
  -- An ACL that refuses the question does not say that the pause has ended.
  if type(stored) == 'table' and string.find(stored.err, 'WRONGTYPE', 1, true) ~= 1 then return stored end
  if stored ~= ARGV[5] then return -1 end
end
local since = redis_now()
if redis.call('LREM', KEYS[1], '-1', ARGV[1]) == 0 then return 0 end
local last = redis.pcall('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if last[2] and tonumber(last[2]) >= since then since = tonumber(last[2]) + 0.000001 end
-- Two jobs of the very same bytes stay two.
local holds = ARGV[8] and ARGV[8] ~= '' and cjson.decode(ARGV[8]) or nil
local lock, copy = lock_for_ticket(holds), 1
local ticket = cjson.encode(lock and { ARGV[2], copy, lock } or { ARGV[2] })
while type(redis.pcall('ZSCORE', KEYS[2], ticket .. '\n' .. ARGV[1])) == 'string' do
  copy = copy + 1
  ticket = cjson.encode({ ARGV[2], copy, lock })
end
local added = redis.pcall('ZADD', KEYS[2], string.format('%.6f', since), ticket .. '\n' .. ARGV[1])
if type(added) == 'table' and added.err then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return added
end
redis.pcall('SADD', KEYS[3], ARGV[3])
if ARGV[6] ~= '' then redis.pcall('SET', KEYS[5], ARGV[6], 'PX', ARGV[7]) end
release_resources(holds)
return 1
