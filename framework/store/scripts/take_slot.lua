-- Give a job a slot of its limit, or hold it until a slot is free.
-- KEYS    1 working list  2 the limit (HASH; parts/slots.lua has the others)
-- ARGV    1 payload as fetched  2 slot member  3 jid  4 queue  5 the limit as this process knows it: 0 none, below 0 pause
--         6 seconds until a slot that is not renewed is free again  7 since when it has waited, '' when it has not yet
--         8 scope, '' for none  9 most slots of a scope, 0 no such limit  10 'wait', or 'refuse': then it does not wait
--         11 its resources of other limits (parts/release.lua), released when it waits
-- RETURN  { 1 has its slot, 0 waits, 2 refused, -1 fenced: the process no longer owns it, nothing was written; slots taken; limit;
--           jobs of its scope that wait }
-- ERROR   a key of the limit is of another type: the job stays in the working list
-- COST    O(W + log N), and as much for each waiting job that gets a free slot, a few as a rule
-- CRASH   before: in the working list. after: there with its slot, which ends with the job or its process, or among the waiting
--         jobs. Called again, it finds the slot taken, or the job gone.
-- Waiting jobs come first, and no slot stays free while a job waits. ZREM first, which is allowed at maxmemory.
if not redis.call('LPOS', KEYS[1], ARGV[1]) then return { -1, 0, 0, 0 } end
local base, member, scope = KEYS[2], ARGV[2], ARGV[8]
local now = redis_now()
redis.call('ZREM', base .. ':running', '')
local mine = free_slot(base, member)
local reserved = free_slot(base, ' ' .. ARGV[3])
if redis.call('HGET', base, 'limit') ~= ARGV[5] then
  redis.call('HSET', base, 'limit', ARGV[5])
  redis.call('SADD', 'aw:limits', base)
end
if ARGV[9] ~= '0' and redis.call('HGET', base, 'share') ~= ARGV[9] then redis.call('HSET', base, 'share', ARGV[9]) end
free_expired(base, now)
if not mine and not reserved then hand_over(base, now, 100) end
local limit = limit_of(base, now)
-- It was written above, so an ACL refuses to have it read.
if not limit then return redis.pcall('HMGET', base, 'limit') end
-- Not `running`, which takes a count that an ACL refuses for none.
local taken = redis.call('ZCARD', base .. ':running')
if limit == 0 or mine or (taken < limit and not scope_is_full(base, scope)) then
  return take_slot(base, member, now + tonumber(ARGV[6]), scope) or { 1, taken + 1, limit, 0 }
end
if ARGV[10] == 'refuse' then return { 2, taken, limit, 0 } end
local waiting, since, payload = base .. ':waiting:' .. scope, ARGV[7], ARGV[1]
if since == '' then
  since = string.format('%.6f', now)
  -- GitLab's field, for readers of the job, and for its old position if it comes back without a slot.
  payload = string.match(payload, '^(.*)}%s*$') .. ',"concurrency_limit_buffered_at":' .. since .. '}'
end
-- The job moves last: an earlier error leaves it in the working list, and no later step can fail.
if not redis.call('ZSCORE', base .. ':turns', scope) and redis.call('SISMEMBER', base .. ':full', scope) == 0 then
  redis.call('ZADD', base .. ':turns', next_turn(base), scope)
end
redis.call('SADD', 'aw:limits:waiting', base)
redis.call('ZADD', waiting, since, cjson.encode({ ARGV[4], ARGV[3], lock_for_ticket(ARGV[11]) }) .. '\n' .. payload)
redis.call('LREM', KEYS[1], -1, ARGV[1])
release(ARGV[11])
-- Its reservation is free again; assign it to the next waiting job.
if reserved then hand_over(base, now, 100) end
return { 0, taken, limit, redis.call('ZCARD', waiting) }
