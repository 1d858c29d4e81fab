-- Move the next job of the sub-queues to their queue's own list, if that is empty: a blocking move has taken the last job there.
-- KEYS    none
-- ARGV    names of queues
-- RETURN  1
-- COST    O(Q log K)
-- CRASH   before: the jobs are in their sub-queues, and the next push, fetch or return of a job moves them. after: one is in the queue.
for _, queue in ipairs(ARGV) do turns().ring(queue) end
return 1
