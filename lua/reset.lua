-- Makes a filter empty again, in place: geometry and TTL stay. It acts on the
-- token that the caller read, and gives the filter a new one, so a second or
-- late copy finds its work done or another filter, and does nothing.
--
-- KEYS: filter, companion
-- ARGV: magic, token read, 16 random bytes, size of the string, trailer, tag of
--       a block ('' for Classic), header length, offset of purpose, purpose to
--       generation as they shall be, offset of the token
-- Answers 'done', 'changed' (not the filter that was read) or 'staging'.
local key, size, tag = KEYS[1], tonumber(ARGV[4]), ARGV[6]
if redis.call('GETRANGE', key, 0, 7) ~= ARGV[1] then
  return 'changed'
end
local token = redis.call('GETRANGE', key, ARGV[10], ARGV[10] + #ARGV[2] - 1)
if string.sub(token, 1, 16) == ARGV[3] then
  redis.call('SETRANGE', key, ARGV[10], token) -- what the first copy wrote may have to be waited for
  return 'done'
end
if token ~= ARGV[2] or redis.call('STRLEN', key) ~= size
  or redis.call('GETRANGE', key, -8, -1) ~= ARGV[5] then
  return 'changed'
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  return 'staging'
end
local chunk = string.rep(string.rep('\0', 64 - #tag) .. tag, 1024)
local first, last = tonumber(ARGV[7]), size - #ARGV[5]
while first < last do
  redis.call('SETRANGE', key, first, string.sub(chunk, 1, last - first))
  first = first + #chunk
end
local time = now()
redis.call('SETRANGE', key, ARGV[8], ARGV[9] .. time .. ARGV[3] .. time .. string.rep('\0', 8))
return 'done'
