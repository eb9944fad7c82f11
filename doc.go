// Package bloom keeps Bloom filters in Redis, and guards a database with them
// against lookups of ids that do not exist.
package bloom
