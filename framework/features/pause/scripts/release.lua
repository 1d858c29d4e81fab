-- Release the oldest held jobs of a paused class to the left end of their queues, so that they run in their order.
-- KEYS    1 held jobs of the class (ZSET)  2 classes with held jobs (SET)  3 set of queue names  4 flags (HASH)
--         5 marker of a pause by a strategy (STRING)
-- ARGV    1 class name  2 flag of the operators' pause  3 the value that the caller has read, '' for none
--         4 '' or 'heed': the caller does not know the class, and leaves it alone while the marker exists. A marker that begins with =
--         keeps the jobs of every caller but the one that names it
--         5 most jobs (fewer while the memory is near its end: parts/room.lua)  6 most bytes (one job always goes)
--         7 how many of the oldest to leave out: they could not go
-- RETURN  { 1 done, 2 done up to a block, which the caller unpacks, -1 the class is paused as far as the caller cannot know, and nothing was written;
--           jobs released; jobs that stay, as the key of their queue is no list }: when both are 0, no more can go
-- COST    O(log N + n)
-- CRASH   before: held. after: in its queue. Any number of callers may run at once: the step that removes a page moves it.
-- To the left end: at the right end each page would overtake the earlier ones. The removal is first, which is allowed at maxmemory.
local stored = redis.pcall('HGET', KEYS[4], ARGV[2])
if (stored or '') ~= ARGV[3] and type(stored) ~= 'table' then return { -1, 0, 0 } end
local marker = redis.pcall('GET', KEYS[5])
local keeps = type(marker) == 'string' and (ARGV[4] == 'heed' or string.sub(marker, 1, 1) == '=')
if keeps and marker ~= ARGV[4] then return { -1, 0, 0 } end
local first = tonumber(ARGV[7])
local most = room(KEYS[1], first, tonumber(ARGV[5]))
if most == 0 then return { 1, 0, 0 } end
-- In slices, since blocks of jobs (wire/blocks.py) are large: reading ends at the first one. A ticket has no space there.
local SLICE = 50
local page, done = {}, 1
for from = first, first + most - 1, SLICE do
  local slice = redis.pcall('ZRANGE', KEYS[1], from, math.min(from + SLICE, first + most) - 1, 'WITHSCORES')
  for i = 1, slice.err and 0 or #slice, 2 do
    if string.byte(slice[i], 2) == 32 then
      done = 2
      break
    end
    page[#page + 1] = slice[i]
    page[#page + 1] = slice[i + 1]
  end
  if done == 2 or slice.err or #slice < 2 * SLICE then break end
end
if not page[1] then
  -- An operator has dropped the last held job: the class would stay in the set.
  if redis.call('EXISTS', KEYS[1]) == 0 then redis.pcall('SREM', KEYS[2], ARGV[1]) end
  return { done, 0, 0 }
end

-- Most tickets are the same line: it is read once. The jobs of each queue go in one command.
local queue_of, lock_of, places, names, stayed, size, taken = {}, {}, {}, {}, {}, 0, 0

local function read_ticket(text)
  local read, ticket = pcall(cjson.decode, text)
  local queue = read and type(ticket) == 'table' and type(ticket[1]) == 'string' and ticket[1]
  queue_of[text], lock_of[text] = queue, queue and ticket[3]
  if queue and not places[queue] then
    places[queue] = { jobs = {}, at = {}, locks = {} }
    names[#names + 1] = queue
  end
end

for i = 1, #page, 2 do
  local member = page[i]
  if i > 1 and size + #member > tonumber(ARGV[6]) then
    done = 1
    break
  end
  size, taken = size + #member, taken + 1
  local line = string.find(member, '\n', 1, true) or 0
  local text = string.sub(member, 1, line - 1)
  if queue_of[text] == nil then read_ticket(text) end
  local place = places[queue_of[text]]
  if place then
    place.jobs[#place.jobs + 1] = string.sub(member, line + 1)
    place.at[#place.at + 1] = i
    if lock_of[text] then place.locks[#place.locks + 1] = lock_of[text] end
  else
    stayed[#stayed + 1] = i
  end
end
redis.call('ZREMRANGEBYRANK', KEYS[1], first, first + taken - 1)
for _, queue in ipairs(names) do
  local place = places[queue]
  if type(redis.pcall('LPUSH', 'queue:' .. queue, unpack(place.jobs))) == 'number' then
    redis.pcall('SADD', KEYS[3], queue)
    arrive(queue)
    for _, lock in ipairs(place.locks) do wake_lock(lock) end
  else
    for _, i in ipairs(place.at) do stayed[#stayed + 1] = i end
  end
end
for _, i in ipairs(stayed) do redis.call('ZADD', KEYS[1], page[i + 1], page[i]) end
if redis.call('EXISTS', KEYS[1]) == 0 then redis.pcall('SREM', KEYS[2], ARGV[1]) end
return { done, taken - #stayed, #stayed }
