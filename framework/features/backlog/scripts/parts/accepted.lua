-- release_accepted(class, bytes, by): count a job of a class with a limit no more (by -1), or again: it leaves the dead set (by 1).
-- keys    aw:accepted_jobs HASH, aw:accepted_bytes HASH: by class (parts/count_accepted.lua)
-- CRASH   as the step that it belongs to. Nothing is written to a key of another type.
local function release_accepted(class, bytes, by)
  local jobs = redis.pcall('HINCRBY', 'aw:accepted_jobs', class, by)
  redis.pcall('HINCRBY', 'aw:accepted_bytes', class, by * bytes)
  if type(jobs) == 'number' and jobs <= 0 then
    redis.pcall('HDEL', 'aw:accepted_jobs', class)
    redis.pcall('HDEL', 'aw:accepted_bytes', class)
  end
end

