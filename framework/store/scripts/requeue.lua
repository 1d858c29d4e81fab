-- Push jobs of this process back to the right end of their queues, so that they run next. A job that has not started goes back with
-- its lock, or stays when another job has taken that meanwhile: it is about to start.
-- KEYS    1 working list  2 set of queue names  3.. per job its queue, or the sub-queue of its level (parts/turns.lua)
-- ARGV    1 number of jobs n  then n payloads as fetched  then n payloads to store  then n queue names
--         then, when any of them holds something, n times what it holds (parts/release.lua)
--         a lock with `stays`: the job stays if another job owns it
-- RETURN  { number pushed back, positions (from 1) of the jobs that stay }; a job that the process no longer owns is left alone
--         A job whose queue's key is of another type stays in the working list, and the others go on
-- COST    O(n*W)
-- CRASH   before: in the working list. after: in the queue. The caller lists the youngest first, which keeps the order.
local n = tonumber(ARGV[1])
local returned, staying = 0, {}

local function has_lost_its_lock(holds)
  local lock = holds and holds ~= '' and cjson.decode(holds).lock
  local owner = lock and lock.stays and holder_of(lock.key, lock.owner)
  return owner and owner ~= lock.owner
end

for i = 1, n do
  if has_lost_its_lock(ARGV[1 + 3 * n + i]) then
    if redis.call('LPOS', KEYS[1], ARGV[1 + i]) then staying[#staying + 1] = i end
  elseif redis.call('LREM', KEYS[1], '-1', ARGV[1 + i]) == 1 then
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
-- After all of them: the first one to come back must not leave its place to an older one.
for i = 1, n do arrive(ARGV[1 + 2 * n + i]) end
return { returned, unpack(staying) }
