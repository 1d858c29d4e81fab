-- Push jobs of this process back to the right end of their queues, so that they run next.
-- KEYS    1 working list  2 set of queue names  3.. one queue per job
-- ARGV    1 number of jobs n  then n payloads as fetched  then n payloads to store  then n queue names
--         then, when any of them holds something, n times what it holds (parts/release.lua)
-- RETURN  number pushed back; a job that the process no longer owns is left alone
--         A job whose queue's key is of another type stays in the working list, and the others go on
-- COST    O(n*W)
-- CRASH   before: in the working list. after: in the queue. The caller lists the youngest first, which keeps the order.
local n = tonumber(ARGV[1])
local returned = 0
for i = 1, n do
  if redis.call('LREM', KEYS[1], -1, ARGV[1 + i]) == 1 then
    local pushed = redis.pcall('RPUSH', KEYS[2 + i], ARGV[1 + n + i])
    if type(pushed) == 'table' then
      -- Where an ACL refuses RPUSH, the other end.
      if type(redis.pcall('RPUSH', KEYS[1], ARGV[1 + i])) == 'table' then redis.call('LPUSH', KEYS[1], ARGV[1 + i]) end
    else
      redis.pcall('SADD', KEYS[2], ARGV[1 + 2 * n + i])
      release(ARGV[1 + 3 * n + i])
      returned = returned + 1
    end
  end
end
return returned
