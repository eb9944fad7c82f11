-- Removes a filter and what stands at its companion key, if they still are what
-- the caller read: both are named by their first bytes, token included.
--
-- KEYS: filter, companion
-- ARGV: first bytes of each as read ('' where nothing was), how many were asked for
local last = ARGV[3] - 1
for i = 1, 2 do
  if ARGV[i] ~= '' and redis.call('GETRANGE', KEYS[i], 0, last) == ARGV[i] then
    redis.call('DEL', KEYS[i])
  end
end
return 'done'
