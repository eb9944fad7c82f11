-- Extends a builder's lease on its staging.
--
-- KEYS: companion
-- ARGV: token, offset of the token, lease in milliseconds
-- Answers 'renewed' or 'lost'.
if redis.call('GETRANGE', KEYS[1], ARGV[2], ARGV[2] + 23) ~= ARGV[1] then
  return 'lost'
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 'renewed'
