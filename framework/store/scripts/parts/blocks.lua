-- take_unpacked(key, most): take the next jobs of a queue with blocks (wire/blocks.py), but none that is newer than a block. Returns the
--         jobs, or the error of the key, and the block that is next, which stays at the right end.
-- COST    O(jobs); of the elements behind a block, fewer than SLICE leave the list and return
-- CRASH   as the step that it belongs to
local SLICE = 16
local BLOCK = '{ "class":"aw.Packed",'

local function is_block(element)
  return string.byte(element, 2) == 32 and string.sub(element, 1, #BLOCK) == BLOCK
end

local function take_unpacked(key, most)
  local jobs = {}
  while #jobs < most do
    -- Blocks are large: one at the right end is not moved.
    local last = redis.pcall('LINDEX', key, -1)
    if not last then break end
    if last.err then return last end
    if is_block(last) then return jobs, last end
    local taken = redis.call('RPOP', key, math.min(SLICE, most - #jobs))
    for i = 1, #taken do
      if is_block(taken[i]) then
        for j = #taken, i, -1 do redis.call('RPUSH', key, taken[j]) end
        return jobs, taken[i]
      end
      jobs[#jobs + 1] = taken[i]
    end
  end
  return jobs
end
