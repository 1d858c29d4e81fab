-- entered_at(payload): when a job entered its queue, as text; '' if that is not known. Only a payload that has the word twice is decoded,
-- unless it is large: then its last one counts.
local function entered_at(payload)
  local FIELD, DECODED_BYTES = '"enqueued_at":', 10000
  if type(payload) ~= 'string' then return '' end
  local start, stop = string.find(payload, FIELD, 1, true)
  if start and #payload <= DECODED_BYTES and string.find(payload, FIELD, stop, true) then
    local read, job = pcall(cjson.decode, payload)
    local at = read and type(job) == 'table' and tonumber(job.enqueued_at)
    return at and string.format('%.6f', at) or ''
  end
  local last
  while start do
    last = stop
    start, stop = string.find(payload, FIELD, stop, true)
  end
  return last and string.match(payload, '^ ?([%d.]+)', last + 1) or ''
end

