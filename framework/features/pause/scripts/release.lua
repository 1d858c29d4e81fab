-- Release the oldest held jobs of a paused class to the left end of their queues, so that they run in their order.
-- KEYS    1 held jobs of the class (ZSET)  2 classes with held jobs (SET)  3 set of queue names  4 flags (HASH)
--         5 marker of a pause by a strategy (STRING)
-- ARGV    1 class name  2 flag of the operators' pause  3 the value that the caller has read, '' for none
--         4 '' or 'heed': the caller does not know the class, and leaves it alone while the marker exists. A marker that begins with =
--         keeps the jobs of every caller but the one that names it
--         5 most jobs  6 most bytes (one job always goes)  7 how many of the oldest to leave out: they could not go
-- RETURN  { 1 done, -1 the class is paused as far as the caller cannot know, and nothing was written;
--           jobs released; jobs that stay, as the key of their queue is no list }: when both are 0, no more can go
-- COST    O(n log N)
-- CRASH   before: held. after: in its queue. Any number of callers may run at once: the ZREM that finds a job moves it.
-- To the left end: at the right end each page would overtake the earlier ones. ZREM first, which is allowed at maxmemory.
local stored = redis.pcall('HGET', KEYS[4], ARGV[2])
if (stored or '') ~= ARGV[3] and type(stored) ~= 'table' then return { -1, 0, 0 } end
local marker = redis.pcall('GET', KEYS[5])
local keeps = type(marker) == 'string' and (ARGV[4] == 'heed' or string.sub(marker, 1, 1) == '=')
if keeps and marker ~= ARGV[4] then return { -1, 0, 0 } end
local first = tonumber(ARGV[7])
local page = redis.pcall('ZRANGE', KEYS[1], first, first + tonumber(ARGV[5]) - 1, 'WITHSCORES')
if page.err then return { 1, 0, 0 } end
local moved, stayed, size = 0, 0, 0
for i = 1, #page, 2 do
  local member, score = page[i], page[i + 1]
  if i > 1 and size + #member > tonumber(ARGV[6]) then break end
  size = size + #member
  local line = string.find(member, '\n', 1, true) or 0
  local read, ticket = pcall(cjson.decode, string.sub(member, 1, line - 1))
  local queue = read and type(ticket) == 'table' and ticket[1]
  redis.call('ZREM', KEYS[1], member)
  local pushed = type(queue) == 'string' and redis.pcall('LPUSH', 'queue:' .. queue, string.sub(member, line + 1))
  if type(pushed) == 'number' then
    redis.pcall('SADD', KEYS[3], queue)
    arrive(queue)
    wake_lock(ticket[3])
    moved = moved + 1
  else
    redis.call('ZADD', KEYS[1], score, member)
    stayed = stayed + 1
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then redis.pcall('SREM', KEYS[2], ARGV[1]) end
return { 1, moved, stayed }
