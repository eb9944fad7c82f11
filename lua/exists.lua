-- Classic's read where the server refuses BITFIELD_RO: reads only.
--
-- KEYS: filter
-- ARGV: size of the string, trailer, k, bit offsets of all items, decimal
-- Answers one '0' or '1' an item, or '' if the string is not the filter that the
-- caller knows.
if redis.call('STRLEN', KEYS[1]) ~= tonumber(ARGV[1])
  or redis.call('GETRANGE', KEYS[1], -8, -1) ~= ARGV[2] then
  return ''
end
local call, found, all, left = redis.call, {}, '1', tonumber(ARGV[3])
for offset in string.gmatch(ARGV[4], '%d+') do
  if all == '1' and call('GETBIT', KEYS[1], offset) == 0 then
    all = '0'
  end
  left = left - 1
  if left == 0 then
    found[#found + 1] = all
    all, left = '1', tonumber(ARGV[3])
  end
end
return table.concat(found)
