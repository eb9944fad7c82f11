-- Second half of CreateEmpty: turns the marker of claim.lua into a whole, empty
-- filter. Without exactly that marker it does nothing, so it is harmless twice
-- and late.
--
-- KEYS: filter, companion
-- ARGV: marker magic, token, header (created and token are written here), size
--       of the string, trailer, tag of a block ('' for Classic), TTL in
--       milliseconds (0: none), offset of created in the header
-- Answers 'made', 'lost' (no such marker) or 'staging'.
local key, size, header, tag = KEYS[1], tonumber(ARGV[4]), ARGV[3], ARGV[6]
if redis.call('GETRANGE', key, 0, 32) ~= ARGV[1] .. ARGV[2] then
  return 'lost'
end
redis.call('DEL', key) -- a string that is made at its final length is allocated once, and exactly
if redis.call('EXISTS', KEYS[2]) == 1 then
  return 'staging'
end
redis.call('SETRANGE', key, size - #ARGV[5], ARGV[5])
if tag ~= '' then
  local chunk = string.rep(string.rep('\0', 64 - #tag) .. tag, 1024)
  local first, last = #header, size - #ARGV[5]
  while first < last do
    redis.call('SETRANGE', key, first, string.sub(chunk, 1, last - first))
    first = first + #chunk
  end
end
redis.call('SETRANGE', key, 0, header)
redis.call('SETRANGE', key, ARGV[8], now() .. ARGV[2])
if ARGV[7] ~= '0' then
  redis.call('PEXPIRE', key, ARGV[7])
end
return 'made'
