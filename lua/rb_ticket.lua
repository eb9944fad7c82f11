-- Plants a ticket for one change of a RedisBloom filter, or adopts the one that
-- is there. The filter itself has no token that a script could compare, so every
-- script that makes, empties, adopts or removes one consumes a ticket: a second
-- or late copy of it finds none, and does nothing. A late copy of this script
-- plants a ticket with another time, which expires.
--
-- KEYS: ticket
-- ARGV: 16 random bytes, milliseconds that the ticket lives
-- Answers the ticket.
local found = redis.call('GET', KEYS[1])
if found then
  return found
end
local ticket = ARGV[1] .. now()
redis.call('SET', KEYS[1], ticket, 'PX', ARGV[2])
return ticket
