-- keep_event(data, queue): keep the event of a recorded job for the database of tasks, in the step that writes the job: no process could
--         record it before (decision 235). The leader writes it to the database. Another type of the key must not stop the step.
-- keys    aw:task_events ZSET: the events of recorded jobs that a script has made
-- CRASH   as the step that it belongs to.
local function keep_event(data, queue)
  if not string.find(data, '"track":true', 1, true) then return end
  local at = string.format('%.6f', redis_now())
  local event = '{"pushed":' .. cjson.encode(data) .. ',"queue":' .. cjson.encode(queue) .. ',"at":' .. at .. '}'
  redis.pcall('ZADD', 'aw:task_events', at, event)
end

