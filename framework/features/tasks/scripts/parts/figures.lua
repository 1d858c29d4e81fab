-- figures_tasks(): { changes of events that wait for the database of tasks, when the first one was seen }
-- COST    O(log N)
local function figures_tasks()
  return { redis.call('ZCARD', 'aw:task_events'), redis.call('ZRANGE', 'aw:task_events', 0, 0, 'WITHSCORES')[2] or '' }
end

