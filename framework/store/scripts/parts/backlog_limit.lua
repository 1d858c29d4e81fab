-- accepted_jobs(class): the jobs of a class with a limit that were accepted and have not ended, and their bytes.
-- has_room(limit): whether the class has room for more jobs: c class, n number of jobs, t their bytes, j most jobs, m most bytes (or
--         neither); then the numbers of accepted_jobs.
-- count_accepted(class, n, bytes): count jobs that were written.
-- keys    aw:accepted_jobs HASH, aw:accepted_bytes HASH: by class. A key of another type limits nothing.
-- COST    O(1)
-- CRASH   as the step that they belong to.
local function accepted_jobs(class)
  local numbers = {}
  for i, key in ipairs({ 'aw:accepted_jobs', 'aw:accepted_bytes' }) do
    local number = redis.pcall('HGET', key, class)
    numbers[i] = type(number) == 'string' and tonumber(number) or 0
  end
  return numbers[1], numbers[2]
end

local function has_room(limit)
  local jobs, bytes = accepted_jobs(limit.c)
  local fits = not (limit.j and jobs + limit.n > limit.j) and not (limit.m and bytes + limit.t > limit.m)
  return fits, jobs, bytes
end

local function count_accepted(class, n, bytes)
  redis.pcall('HINCRBY', 'aw:accepted_jobs', class, n)
  redis.pcall('HINCRBY', 'aw:accepted_bytes', class, bytes)
end

