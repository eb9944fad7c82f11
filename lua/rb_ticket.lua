-- Plants a ticket for one change of a RedisBloom filter, or adopts the one that
-- is out. The filter itself has no token that a script could compare, so every
-- script that makes, empties, adopts, replaces or removes one consumes a ticket: a
-- second or late copy of it finds that spent, and does nothing. A late copy of this
-- script plants a ticket with another time, which expires.
--
-- KEYS: tickets, a hash
-- ARGV: 16 random bytes, milliseconds that the ticket lives, what it is for
-- Answers the ticket: the random bytes and the server's microseconds.
local open = redis.call('HGET', KEYS[1], 'open')
if open then
  return open
end
if ARGV[3] == 'drop' then
  -- Redis at maxmemory lets a script that has written write on: a drop must not fail
  -- there, and this needs no memory.
  redis.call('HDEL', KEYS[1], 'open')
end
local time = redis.call('TIME')
open = ARGV[1] .. string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('HSET', KEYS[1], 'open', open)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return open
