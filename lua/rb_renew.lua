-- Extends a builder's lease, or with 0 milliseconds gives up what it built.
--
-- KEYS: filter, staging, state
-- ARGV: token, lease in milliseconds (0: abort)
-- Answers 'renewed', 'aborted' or 'lost'.
if redis.call('HGET', KEYS[3], 'token') ~= ARGV[1] then
  return 'lost'
end
if ARGV[2] ~= '0' then
  redis.call('PEXPIRE', KEYS[3], ARGV[2])
  return redis.call('PEXPIRE', KEYS[2], ARGV[2]) == 1 and 'renewed' or 'lost'
end
redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[3], 'token', 'batches', 'added', 'card', 'refused', 'next first', 'next purpose')
-- What is left tells of the live generation, and lives as long.
local ttl = redis.call('PTTL', KEYS[1])
if ttl > 0 then
  redis.call('PEXPIRE', KEYS[3], ttl)
elseif ttl == -1 then
  redis.call('PERSIST', KEYS[3])
else
  redis.call('DEL', KEYS[3])
end
return 'aborted'
