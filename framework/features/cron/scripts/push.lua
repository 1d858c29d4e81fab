-- Settle one tick of a cron entry: push its job, or none, and advance the state of the entry in the same step.
-- KEYS    1 states of the entries (HASH: entry -> 'TICK FINGERPRINT JID', with ' +' behind it while a run waits for the end of that
--         job)  2 last ticks of the entry (LIST)  3 set of queue names  4 the queue
-- ARGV    1 entry  2 its state as it was read, '' for none  3 the tick; '' for a job between ticks, which settles none
--         4 fingerprint  5 why no job is pushed, '' to push one  6 jid  7 payload  8 queue name, or that of a sub-queue (parts/turns.lua)
--         9 lock request of the job (parts/lock_request.lua) or ''  10 '1' to push none while the last job waits or runs,
--         'queue' to let one run wait for its end: the caller pushes it with the same tick when the job has ended
--         11 seconds for which the state of a tracked job is kept, 0 for none  12 most ticks in the list  13 its lifetime in milliseconds
--         14 for a class with a limit of accepted jobs the room that it must have (JSON; parts/backlog_limit.lua), with x the series that
--         counts the job if it is dropped, '' if it is not; else ''
-- RETURN  0 another process was first: the state is no longer the one that was read
--         -1 the tick is in the future of this server's clock (an entry may begin there, after a clock was set back)
--         else { what happened: pushed, manual, overlap, waits, duplicate, full (dropped for lack of room), held_back (for lack of room
--         nothing is settled: the caller comes again) or ARGV 5; the jid of the job that waits, runs or has the lock; the state after the
--         step }
-- ERROR   the server is full (this is a push, and may be refused), or the queue's key is of another type: nothing was written
-- COST    O(1)
-- CRASH   before: neither job nor state. after: both, with the event of a recorded job in aw:task_events. Any number of processes: the state that was read lets only one of them pass.
local name, old, tick, now = ARGV[1], ARGV[2], ARGV[3], redis_now()
if (redis.call('HGET', KEYS[1], name) or '') ~= old then return 0 end
local manual, fingerprint = tick == '', ARGV[4]
if manual then
  tick = string.match(old, '^%d+') or string.format('%d', now)
  fingerprint = string.match(old, '^%d+ (%S+)') or fingerprint
elseif ARGV[5] ~= 'begun' and tonumber(tick) > now then
  return -1
end
local outcome, other = ARGV[5], nil
local last, waits = string.match(old, '^%d+ %S+ (%S*)(.*)$')
last, waits = last or '', waits == ' +'
if outcome == '' and ARGV[10] ~= '' and last ~= '' then
  local state = redis.pcall('GET', 'aw:status:' .. last)
  -- A job that was cancelled before its start will not run.
  if state == 'running' or ((state == 'queued' or state == 'retrying') and not late().is_cancelled(last)) then
    other = last
    -- Later ticks join the run that waits. A caller that asks again with its tick changes nothing.
    if ARGV[10] == 'queue' and waits and tick == string.match(old, '^%d+') then return { 'waits', other, old } end
    outcome = (ARGV[10] == 'queue' and not waits) and 'waits' or 'overlap'
  end
end
local claim = outcome == '' and ARGV[9] ~= '' and late().read_lock_request(ARGV[9]) or nil
if claim then
  other = late().rival(claim)
  if other and claim.drops then outcome = 'duplicate' end
end
local room = outcome == '' and ARGV[14] ~= '' and cjson.decode(ARGV[14]) or nil
if room and not late().has_room(room) then
  if room.x == '' then return { 'held_back', '', old } end
  redis.pcall('HINCRBY', 'aw:counters', room.x, 1)
  outcome = 'full'
end
-- The state is written before the job, and restored if the queue refuses the job: an error after the push would repeat the tick.
if outcome == 'waits' then waits = true end
if outcome == 'dropped' or outcome == 'duplicate' or outcome == 'full' or (outcome == '' and not manual) then waits = false end
local state = tick .. ' ' .. fingerprint .. ' ' .. (outcome == '' and ARGV[6] or last) .. (waits and ' +' or '')
redis.call('HSET', KEYS[1], name, state)
if outcome == '' then
  local put = redis.pcall('LPUSH', KEYS[4], other and late().marked(ARGV[7], other) or ARGV[7])
  if type(put) == 'table' then
    if old == '' then redis.call('HDEL', KEYS[1], name) else redis.call('HSET', KEYS[1], name, old) end
    return put
  end
  redis.pcall('SADD', KEYS[3], ARGV[8])
  if string.find(ARGV[8], '~', 1, true) then late().arrive(ARGV[8]) end
  if room then late().count_accepted(room.c, 1, room.t) end
  if claim and not other then late().obtain(claim) end
  if ARGV[11] ~= '0' then redis.pcall('SET', 'aw:status:' .. ARGV[6], 'queued', 'EX', ARGV[11]) end
  if string.find(ARGV[7], '"track":true', 1, true) then late().keep_event(ARGV[7], ARGV[8]) end
  outcome = manual and 'manual' or 'pushed'
elseif outcome == 'duplicate' then
  late().drop_duplicate(claim)
end
if outcome ~= 'begun' then
  local shown = outcome == 'pushed' or outcome == 'manual'
  local line = string.format('%.3f %s %s %s', now, manual and '-' or tick, outcome, shown and ARGV[6] or other or '')
  local ticks = redis.pcall('LPUSH', KEYS[2], line)
  if type(ticks) == 'number' and ticks > tonumber(ARGV[12]) then redis.pcall('LTRIM', KEYS[2], 0, ARGV[12] - 1) end
  redis.pcall('PEXPIRE', KEYS[2], ARGV[13])
end
return { outcome, other or '', state }
