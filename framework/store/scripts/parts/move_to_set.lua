-- move_to_set(first, score_of, found): move jobs from the working list KEYS[1] to the sorted set KEYS[2], and release what they hold. ARGV has
--         from `first` on per job: payload as fetched, payload to store, a word of the script, what it holds (parts/release.lua).
--         score_of(at) returns the score of the job whose arguments begin at `at`, as text.
-- RETURN  `found`, with { position of a job (from 1), 0 fenced: the process no longer owns it, and nothing was written;
--           -position, error of a lock, slot or status of a job that has moved; ... }; and the places of the jobs that have moved, in ARGV;
--           or the error of a set's key of another type: the jobs are back in the working list (Lua does not roll back by itself)
-- CRASH   as the step that it belongs to: a job is in one of both.
local function move_to_set(first, score_of, found)
  local working, entries, moved, n = KEYS[1], {}, {}, 0
  for at = first, #ARGV, 4 do
    if redis.call('LREM', working, '-1', ARGV[at]) == 0 then
      found[#found + 1] = (at - first) / 4 + 1
      found[#found + 1] = 0
    else
      n = n + 1
      moved[n] = at
      entries[2 * n - 1], entries[2 * n] = score_of(at), ARGV[at + 1]
    end
  end
  if n == 0 then return found, moved end
  local added = redis.pcall('ZADD', KEYS[2], unpack(entries))
  if type(added) == 'table' then
    for _, at in ipairs(moved) do redis.call('RPUSH', working, ARGV[at]) end
    return added
  end
  -- In the same step: an earlier write could be wrong (fenced), and a later one could overwrite the state of the next run.
  for _, at in ipairs(moved) do
    local failed = ARGV[at + 3] ~= '' and late().try_release(ARGV[at + 3])
    if failed then
      found[#found + 1] = (first - at) / 4 - 1
      found[#found + 1] = failed
    end
  end
  return found, moved
end

-- Return a time in whole microseconds as seconds: a number with a fraction takes four times as long to format.
local function seconds_text(microseconds)
  return string.format('%d.%06d', microseconds / 1000000, microseconds % 1000000)
end

