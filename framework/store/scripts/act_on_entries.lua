-- Carry out an operator's action on entries of a sorted set of jobs: each leaves for its next place, or gets another time.
-- KEYS    1 sorted set  2 set of queue names  3 dead set  4 counters (HASH)  5.. per entry its queue (any declared key where it goes to
--         none)
-- ARGV    1 number of entries n  2 action  3 most dead entries  4 longest stay in the dead set in seconds  5 new score, for `time`
--         then n members as they were read, n payloads to store, n queue names, n times what each holds (parts/release.lua), n series
--         in which they are counted ('' for none). The actions:
--           queue   to the left end of its queue
--           dead    into the dead set, which is trimmed
--           remove  nowhere; with the name of its set as its payload, to the deleted jobs (aw:deleted) in place of a queue: for 24 h
--                   an operator may bring it back (undo_delete.lua). These are trimmed: by age, number and bytes
--           time    stays, with the new score
-- RETURN  a list per entry: 1 done, 0 it is no longer there, and nothing was written, -1 the destination's key is of another type, and
--         the entry stays as it was; then the number trimmed
-- COST    O(n log N + trimmed)
-- CRASH   before: in the set. after: at its place, with the lock and the state that it has there. The ZREM that finds the member moves
--         it: pollers, Ruby's pages and other operators may race. Called again after a lost reply, it finds no entry.
local n, action, seconds = tonumber(ARGV[1]), ARGV[2], redis_now()
local set, now = KEYS[1], string.format('%.6f', seconds)
local done, scores, groups, order, counts, trimmed = {}, {}, {}, {}, {}, 0
-- Both write nothing (an empty range, and a score that none exceeds): without the right to one of them the script ends here, before
-- a job has left its place. The removal comes first, as always (maxmemory).
redis.call('ZREMRANGEBYRANK', set, 1, 0)
redis.call('ZADD', set, 'XX', 'LT', '+inf', '')

-- Release what a job that has left holds, and count it.
local function left(i)
  if set == 'dead' then redis.pcall('ZREM', 'aw:dead:business', redis.sha1hex(ARGV[5 + i])) end
  local holds, series = ARGV[5 + 3 * n + i], ARGV[5 + 4 * n + i]
  -- An ACL may refuse it, and Lua does not roll back: so the jobs behind it are still moved.
  if holds ~= '' then pcall(release, holds) end
  if series ~= '' then counts[series] = (counts[series] or 0) + 1 end
end

-- Keep a removed job with its set and its score, so that the deletion can be undone. An ACL may refuse it: the job is deleted then.
local kept = 0
local function keep(i, score)
  local member = ARGV[5 + n + i] .. ' ' .. score .. '\n' .. ARGV[5 + i]
  if redis.pcall('ZADD', KEYS[4 + i], now, member) == 1 then kept = kept + #member end
end

-- Trim the deleted jobs, at most a thousand: the next call goes on. The key goes with the last one.
local function trim_deleted(key)
  local LONGEST_S, MOST_JOBS, MOST_BYTES, MOST_AT_ONCE = 86400, 10000, 50000000, 1000
  local bytes = redis.pcall('INCRBY', key .. ':bytes', kept)
  bytes = type(bytes) == 'number' and bytes or 0
  local old = redis.pcall('ZRANGEBYSCORE', key, '-inf', seconds - LONGEST_S, 'LIMIT', 0, MOST_AT_ONCE)
  local excess = math.min(MOST_AT_ONCE, (tonumber(redis.pcall('ZCARD', key)) or 0) - MOST_JOBS)
  for at = 1, MOST_AT_ONCE do
    if at > #old and at > excess and bytes <= MOST_BYTES then break end
    local first = redis.pcall('ZPOPMIN', key)
    if first.err or not first[1] then break end
    bytes = redis.pcall('DECRBY', key .. ':bytes', #first[1])
    bytes = type(bytes) == 'number' and bytes or 0
  end
  for _, each in ipairs({ key, key .. ':bytes' }) do redis.pcall('EXPIRE', each, LONGEST_S) end
  -- A count that is wrong begins again with the next deletion.
  if redis.pcall('EXISTS', key) == 0 then redis.pcall('UNLINK', key .. ':bytes') end
end

-- Put the jobs of one destination there, in one command; return the error, if any.
local function put(group)
  local done_now
  if action == 'dead' then
    done_now = redis.pcall('ZADD', KEYS[3], unpack(group.words))
  else
    done_now = redis.pcall('LPUSH', group.key, unpack(group.words))
    if type(done_now) == 'number' then
      redis.pcall('SADD', KEYS[2], group.queue)
      arrive(group.queue)
    end
  end
  return type(done_now) == 'table' and done_now.err
end

for i = 1, n do
  local member = ARGV[5 + i]
  local goes = action == 'queue' or action == 'dead'
  local stays = action == 'remove' and ARGV[5 + n + i] ~= ''
  scores[i] = (goes or stays) and redis.call('ZSCORE', set, member)
  -- The first write is a removal: that one is allowed at maxmemory, and then so are the others.
  done[i] = redis.call('ZREM', set, member)
  if done[i] == 1 and not goes then
    if action == 'time' then redis.call('ZADD', set, ARGV[5], member) end
    if stays then keep(i, scores[i]) end
    left(i)
  elseif done[i] == 1 then
    local key = KEYS[4 + i]
    local group = groups[key]
    if not group then
      group = { key = key, queue = ARGV[5 + 2 * n + i], words = {}, jobs = {} }
      groups[key], order[#order + 1] = group, group
    end
    if action == 'dead' then group.words[#group.words + 1] = now end
    group.words[#group.words + 1] = ARGV[5 + n + i]
    group.jobs[#group.jobs + 1] = i
  end
end
for _, group in ipairs(order) do
  local failed = put(group)
  for _, i in ipairs(group.jobs) do
    if failed then
      redis.call('ZADD', set, scores[i], ARGV[5 + i])
      done[i] = -1
    else
      left(i)
    end
  end
  if action == 'dead' and not failed then trimmed = trim(KEYS[3], seconds, tonumber(ARGV[3]), tonumber(ARGV[4])) end
end
if kept > 0 then trim_deleted(KEYS[5]) end
for series, count in pairs(counts) do redis.pcall('HINCRBY', KEYS[4], series, count) end
return { done, trimmed }
