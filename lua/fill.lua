-- Replaces a lease by the entry that was loaded under it. Where that lease is
-- gone (expired, evicted, flushed, invalidated) nothing is stored: what was
-- loaded may be stale.
--
-- KEYS: the entry
-- ARGV: the lease, the entry to store, milliseconds
-- Answers 1 if the entry is stored, by this call or a copy of it.
local found = redis.call('GET', KEYS[1])
if found == ARGV[2] then
  return 1
elseif found ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
