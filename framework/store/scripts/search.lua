-- Search the jobs of many lists (queues and working lists) for a text. Reads only.
-- KEYS    lists, in the order of the search
-- ARGV    1 the text  2 index in the first list to begin at  3 most bytes of payloads to read  4 most jobs to read
--         5 jobs of the first page where the first list goes on at an index
-- RETURN  { lists that are done, index in the next one to go on at, jobs that were read, jobs of its next page,
--           then four for each job: number of its list (from 1), index, number of jobs in the list, payload }
--         a block of jobs (parts/blocks.lua) may have the text, and counts as a job that has it
-- COST    O(lists + jobs + bytes), each bounded by the caller, and one walk to the index: 2 ms to the middle of a million jobs
-- CRASH   nothing moves.
-- The first page of a list is small, as the size of its jobs is unknown; each page determines the next one. A call that goes on in a
-- list reads one page of it, as each page takes a walk. At least one job is read, so that every call makes progress. A key of another
-- type holds no jobs; any other error is returned.
local FIRST, MOST = 8, 2000
local needle, from = ARGV[1], tonumber(ARGV[2])
local bytes_left, jobs_left = tonumber(ARGV[3]), tonumber(ARGV[4])
local looked, reply = 0, { 0, 0, 0, 1 }

-- Return the jobs of a queue that are in blocks, and the number of these; 0 for most lists.
local function packed_in(key)
  local queue = string.match(key, '^queue:(.*)$')
  if not queue then return 0, 0 end
  local jobs = tonumber(redis.pcall('HGET', 'aw:packed', queue)) or 0
  return jobs, jobs > 0 and tonumber(redis.pcall('HGET', 'aw:packed:blocks', queue)) or 0
end

local any_packed = redis.call('EXISTS', 'aw:packed') == 1
for number, key in ipairs(KEYS) do
  local goes_on, length = from > 0, nil
  local size = goes_on and math.min(jobs_left, tonumber(ARGV[5])) or FIRST
  local jobs_packed, blocks = 0, 0
  if any_packed then jobs_packed, blocks = packed_in(key) end
  -- Blocks are large, and may follow many small jobs.
  local most = blocks > 0 and FIRST or MOST
  size = math.min(size, most)
  while true do
    local page = redis.pcall('LRANGE', key, from, from + size - 1)
    if page.err then
      if not string.find(page.err, 'WRONGTYPE', 1, true) then return page end
      break
    end
    local bytes = 0
    for index, payload in ipairs(page) do
      bytes = bytes + #payload
      if is_block(payload) or string.find(payload, needle, 1, true) then
        length = length or redis.call('LLEN', key) + jobs_packed - blocks
        local at = #reply
        reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = number, from + index - 1, length, payload
      end
    end
    looked, bytes_left, jobs_left = looked + #page, bytes_left - bytes, jobs_left - #page
    if #page < size then break end
    from = from + #page
    -- A list with blocks has few elements: a walk through it is short.
    if bytes_left <= 0 or jobs_left <= 0 or (goes_on and blocks == 0) then
      reply[1], reply[2], reply[3] = number - 1, from, looked
      reply[4] = math.max(1, math.min(most, math.floor(tonumber(ARGV[3]) * #page / math.max(1, bytes))))
      return reply
    end
    size = math.max(1, math.min(most, jobs_left, math.floor(bytes_left * #page / math.max(1, bytes))))
  end
  from = 0
  reply[1], reply[2], reply[3] = number, 0, looked
  if bytes_left <= 0 or jobs_left <= 0 then return reply end
end
return reply
