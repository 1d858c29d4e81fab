-- Remove a page of jobs that the other shard has, and return the next page, oldest job last.
-- KEYS    1 pages in flight (HASH)  2 list of the jobs that leave one place  3 counts of moved jobs (HASH)
-- ARGV    1 field of the list in the HASH  2 token for a new page  3 most jobs  4 most bytes (one job is always shown)
--         5 token of a page that the other shard has written, '' for none  6 move  7 what the jobs of that page had here: JSON
--         {fence_ms: ..., locks: [[key, jid], ...], keys: [...], told: [messages to waiters by name (parts/release.lua), ...]}, '' for nothing
-- RETURN  { token, jobs ... } of the page in flight; {} no job is left
-- COST    O(n), from the end of the list
-- CRASH   before or after, a page in flight is its token and its length in the HASH, and its jobs at the right end of the list. Only
--         the call that has its token removes it: any number of movers write the same page, and the other shard takes it once.
-- HDEL first, of a field that does not exist: it is allowed at maxmemory, and as the script's first write lets HSET pass.
redis.call('HDEL', KEYS[1], '')
local token, count = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%S+) (%d+)$')
if token and token == ARGV[5] then
  redis.call('RPOP', KEYS[2], count)
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HINCRBY', KEYS[3], ARGV[6], count)
  token = nil
  if ARGV[7] ~= '' then
    local had = cjson.decode(ARGV[7])
    -- The lock is on the other shard by now, and a push that does not know of the move is told so (find_owners.lua). A lock that
    -- another job has taken meanwhile stays.
    for _, lock in ipairs(had.locks) do
      if owner_of(lock[1]) == lock[2] then
        redis.call('DEL', lock[1])
        redis.call('HSET', lock[1], 'moved', '')
        redis.call('PEXPIRE', lock[1], had.fence_ms)
      end
    end
    for _, key in ipairs(had.keys) do redis.call('DEL', key) end
    for _, told in ipairs(had.told) do late().tell_waiters(told) end
  end
end
if not token then
  local size
  count, size = 0, 0
  while count < tonumber(ARGV[3]) do
    local job = redis.call('LINDEX', KEYS[2], -count - 1)
    if not job then break end
    size = size + #job
    if count > 0 and size > tonumber(ARGV[4]) then break end
    count = count + 1
  end
  if count == 0 then return {} end
  token = ARGV[2]
  redis.call('HSET', KEYS[1], ARGV[1], token .. ' ' .. string.format('%.0f', count))
end
local page = redis.call('LRANGE', KEYS[2], -count, -1)
table.insert(page, 1, token)
return page
