-- Sets the bits at the offsets listed in ARGV[2] and answers for each item of ARGV[1]
-- bits whether one was new.
local k, added, fresh, left = tonumber(ARGV[1]), {}, '0', tonumber(ARGV[1])
for offset in string.gmatch(ARGV[2], '%d+') do
  if redis.call('SETBIT', KEYS[1], offset, '1') == 0 then
    fresh = '1'
  end
  left = left - 1
  if left == 0 then
    added[#added + 1] = fresh
    fresh, left = '0', k
  end
end
return table.concat(added)
