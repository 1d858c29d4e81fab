-- Take held jobs of one queue out of their set, to be written to another shard: those that wait at a limit, or of a paused class.
-- KEYS    1 set of held jobs  2 list of the jobs that leave the queue of their tickets  3 set of the limits, or classes, with held jobs
--         4 turns of the limit (ZSET) and 5 its scopes that have their share (SET); keys that do not exist for a paused class
-- ARGV    1 the limit, or the class, in that set  2 scope of the jobs, '' for none  then the members as they were read, oldest first
-- RETURN  a list per member: 1 taken, 0 it is no longer there
-- ERROR   the list's key is of another type, or may not be written: the member is back in its set
-- COST    O(n log N)
-- CRASH   before: held. after: in the list, without its ticket; `page.lua` or `restore.lua` goes on, the latter to its queue, where it is
--         admitted anew. The ZREM that finds a member takes it: a job that ends, a process that resumes and other movers may race. It
--         has no slot. Its lock lasts from here on as that of a job in its queue.
-- ZREM first: it is allowed at maxmemory, and as the script's first write lets LPUSH pass.
local taken = {}
for i = 3, #ARGV do
  local member = ARGV[i]
  local line = string.find(member, '\n', 1, true)
  local ticket = cjson.decode(string.sub(member, 1, line - 1))
  local score = redis.call('ZSCORE', KEYS[1], member)
  taken[i - 2] = redis.call('ZREM', KEYS[1], member)
  if taken[i - 2] == 1 then
    local put = redis.pcall('LPUSH', KEYS[2], string.sub(member, line + 1))
    if type(put) == 'table' then
      redis.call('ZADD', KEYS[1], score, member)
      return put
    end
    wake_lock(ticket[3])
  end
end
-- A limit names its scopes with jobs, and both kinds are named while they have jobs.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.pcall('ZREM', KEYS[4], ARGV[2])
  if redis.pcall('EXISTS', KEYS[4], KEYS[5]) == 0 then redis.pcall('SREM', KEYS[3], ARGV[1]) end
end
return taken
