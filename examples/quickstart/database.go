package main

import (
	"context"
	"sync/atomic"

	"github.com/bloomguard/bloom"
)

// item is a row of the database.
type item struct {
	Row  int32  `json:"row"`
	Name string `json:"name"`
}

// database stands for the caller's own: it counts the queries that reach it.
type database struct {
	items  *catalog
	found  atomic.Int64
	absent atomic.Int64 // queries for ids that do not exist: what the attack is after
}

// load is a [bloom.Loader]: no such row is bloom.ErrNotFound, any other error
// a failed query.
func (d *database) load(_ context.Context, id string) (item, error) {
	row, ok := d.items.rows[id]
	if !ok {
		d.absent.Add(1)
		return item{}, bloom.ErrNotFound
	}
	d.found.Add(1)
	return item{Row: row, Name: d.items.names[row]}, nil
}
