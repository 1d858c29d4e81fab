-- Put jobs that were to leave a queue or a sorted set back there: into the queue before all others, in their order.
-- KEYS    1 pages in flight (HASH)  2 list of the jobs that leave one place  3 that queue or sorted set  4 set of queue names
-- ARGV    1 field of the list in the HASH  2 most jobs  3 queue name, '' for a sorted set
--         4 token of a page that the other shard has certainly not written, '' for none
-- RETURN  number put back; -1 the key is of another type and nothing was moved
-- COST    O(n); of a sorted set O(n log N)
-- CRASH   before: in the list. after: in its place. A page in flight stays: the other shard may have its jobs.
-- HDEL first, as in `page.lua`.
redis.call('HDEL', KEYS[1], '')
local token, count = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%S+) (%d+)$')
if token and token == ARGV[4] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  token = nil
end
local kind = redis.call('TYPE', KEYS[3]).ok
if kind ~= 'none' and kind ~= (ARGV[3] ~= '' and 'list' or 'zset') then return -1 end
local left = redis.call('LLEN', KEYS[2]) - (token and tonumber(count) or 0)
local moved = math.max(0, math.min(left, tonumber(ARGV[2])))
for _ = 1, moved do
  local job = redis.call('LPOP', KEYS[2])
  local put
  if ARGV[3] ~= '' then
    put = redis.pcall('RPUSH', KEYS[3], job)
  else
    local at = string.find(job, '\n', 1, true)
    put = redis.pcall('ZADD', KEYS[3], 'LT', string.sub(job, 1, at - 1), string.sub(job, at + 1))
  end
  if type(put) == 'table' then
    redis.call('LPUSH', KEYS[2], job)
    return put
  end
end
if moved > 0 and ARGV[3] ~= '' then
  redis.pcall('SADD', KEYS[4], ARGV[3])
  arrive(ARGV[3])
end
return moved
