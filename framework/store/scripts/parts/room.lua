-- room(set, rank, most): how many of `most` held jobs, of which that at `rank` of the set is the next, may return to its queue.
-- All while there is memory. While it is near its end they leave their blocks (wire/blocks.py) as the queue empties: a job takes three
-- times as much memory there. The process that measures the memory writes the key (features/backlog/pressure.py).
-- COST    O(log N)
local FILLED = { near = 20000, short = 1000 }

local function room(set, rank, most)
  local word = redis.pcall('GET', 'aw:memory_pressure')
  local filled = type(word) == 'string' and FILLED[word]
  if not filled then return most end
  local held = redis.pcall('ZRANGE', set, rank, rank)[1]
  local line = held and string.find(held, '\n', 1, true)
  local read, ticket = pcall(cjson.decode, line and string.sub(held, 1, line - 1) or '')
  -- Of a job its ticket, of a block its line.
  local queue = read and type(ticket) == 'table' and (ticket[1] or ticket.queue)
  local waiting = type(queue) == 'string' and redis.pcall('LLEN', 'queue:' .. queue)
  return type(waiting) == 'number' and math.max(0, math.min(most, filled - waiting)) or most
end
