-- reply_or(reply, otherwise): the reply of redis.pcall; `otherwise` if the key has another type. Raises any other error.
local function reply_or(reply, otherwise)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err) end
  return otherwise
end

