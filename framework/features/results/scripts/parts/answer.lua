-- release_answer(jid, how, ttl_s, caller, answer): keep the answer of a job for its caller, in the step that moves the job.
-- how     as a batch counts it (batches: parts/batch.lua); without an answer this word is stored
-- caller  the process that waits, '' for none: the id of the job goes to its list, of which the last 1,000 are kept
-- keys    aw:result:JID STRING with ttl_s, aw:result_calls:CALLER LIST
-- CRASH   as the step that it belongs to. Nothing is written to a key of another type.
local function release_answer(jid, how, ttl_s, caller, answer)
  local result = 'aw:result:' .. jid
  if how == 'revived' then
    redis.pcall('DEL', result)
    return
  end
  redis.pcall('SET', result, answer ~= '' and answer or '{"end":"' .. how .. '"}', 'EX', ttl_s)
  if caller == '' then return end
  local calls = 'aw:result_calls:' .. caller
  redis.pcall('RPUSH', calls, jid)
  redis.pcall('LTRIM', calls, -1000, -1)
  redis.pcall('EXPIRE', calls, 60)
end

