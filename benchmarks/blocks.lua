-- Answers the 64 bytes at each of the offsets ARGV.
local blocks = {}
for i = 1, #ARGV do
  blocks[i] = redis.call('GETRANGE', KEYS[1], ARGV[i], ARGV[i] + 63)
end
return blocks
