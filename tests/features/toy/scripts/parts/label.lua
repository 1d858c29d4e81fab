-- release_toy(label, how): count the end of a job with a label, in the step that moves the job.
-- keys    aw:toy:labels HASH
-- CRASH   as the step that it belongs to
local function release_toy(label, how)
  redis.call('HINCRBY', 'aw:toy:labels', label .. ' ' .. how, 1)
end

