-- For each item 1 if all of its ARGV[1] bits are set, else 0; its offsets follow in order.
local k, answers = tonumber(ARGV[1]), {}
for from = 2, #ARGV, k do
  local all = '1'
  for i = from, from + k - 1 do
    if redis.call('GETBIT', KEYS[1], ARGV[i]) == 0 then
      all = '0'
      break
    end
  end
  answers[#answers + 1] = all
end
return table.concat(answers)
