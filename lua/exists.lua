-- Classic's read where the server refuses BITFIELD_RO: reads only.
--
-- KEYS: filter
-- ARGV: size of the string, trailer, k, bit offsets of all items, 4 bytes each
-- Answers one '0' or '1' an item, or '' if the string is not the filter that the
-- caller knows.
if redis.call('STRLEN', KEYS[1]) ~= tonumber(ARGV[1])
  or redis.call('GETRANGE', KEYS[1], -8, -1) ~= ARGV[2] then
  return ''
end
local byte, k, offsets, found = string.byte, tonumber(ARGV[3]), ARGV[4], {}
for item = 1, #offsets, 4 * k do
  local all = '1'
  for i = item, item + 4 * (k - 1), 4 do
    local a, b, c, d = byte(offsets, i, i + 3)
    if redis.call('GETBIT', KEYS[1], ((a * 256 + b) * 256 + c) * 256 + d) == 0 then
      all = '0'
      break
    end
  end
  found[#found + 1] = all
end
return table.concat(found)
