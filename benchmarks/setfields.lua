-- Does what setlist.lua does by one BITFIELD for each 16 items.
local k, added, args, n = tonumber(ARGV[1]), {}, {}, 0
for i = 1, 16 * k * 4, 4 do
  args[i], args[i + 1], args[i + 3] = 'SET', 'u1', '1'
end
local function flush()
  local old = redis.call('BITFIELD', KEYS[1], unpack(args, 1, n))
  for from = 1, #old, k do
    local fresh = '0'
    for i = from, from + k - 1 do
      if old[i] == 0 then
        fresh = '1'
        break
      end
    end
    added[#added + 1] = fresh
  end
  n = 0
end
for offset in string.gmatch(ARGV[2], '%d+') do
  args[n + 3] = offset
  n = n + 4
  if n == 16 * k * 4 then
    flush()
  end
end
if n > 0 then
  flush()
end
return table.concat(added)
