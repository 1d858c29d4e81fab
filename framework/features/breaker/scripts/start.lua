-- Ask the breaker of a class whether a job may start, and note that this process runs the class.
-- KEYS    1 the breaker of the class (HASH)
-- ARGV    1 class 2 identity of the process 3 id of the job 4 the rule as JSON 5 ended runs since the last call 6 failed ones of these
-- RETURN  { 1 it starts, 2 it starts as the probe, 0 it starts later, -1 it is held; 'opened' or ''; cause; reason; until }
-- COST    that of parts/judge.lua
-- CRASH   nothing moves. A process that dies after this counts as a death of the class, also if the job had not begun. A repeated call
--         counts ARGV 5 and 6 again, so no caller sends them twice. A lost 'opened' has no line in the log; `breakers` shows the state.
-- While a death is fresh, and no run has succeeded since, no more processes run the class than may still die: so the deaths are at most
-- those of the rule, and those of the processes that ran the class at the first one.
local base = KEYS[1]
local rule = cjson.decode(ARGV[4])
local state, event = breaker_judge(base, ARGV[1], rule, tonumber(ARGV[5]), tonumber(ARGV[6]))
local now = redis_now()
local answer = 1
if state == 'probing' then
  answer = redis.call('HGET', base, 'probe') == ARGV[3] and 2 or -1
elseif state == 'open' then
  answer = now >= tonumber(redis.call('HGET', base, 'until')) and 2 or -1
elseif rule.deaths > 0 and redis.call('HEXISTS', base, 'cautious') == 1 then
  local mine = redis.call('ZSCORE', base .. ':owners', ARGV[2]) and 1 or 0
  local others = redis.call('ZCARD', base .. ':owners') - mine
  if others + redis.call('ZCARD', base .. ':deaths') >= rule.deaths then answer = 0 end
end
if answer > 0 then
  redis.call('ZADD', base .. ':owners', now, ARGV[2])
  redis.call('EXPIRE', base .. ':owners', math.ceil(rule.within + rule.longest_wait + 86400))
end
if answer == 2 then redis.call('HSET', base, 'state', 'probing', 'probe', ARGV[3], 'owner', ARGV[2], 'until', now) end
local cause, reason, due = unpack(redis.call('HMGET', base, 'cause', 'reason', 'until'))
return { answer, event or '', cause or '', reason or '', due or '' }
