package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// table is one column of a table, read in the order of its values, a page at a
// time: each query begins behind the last value of the one before. So nothing is
// held open for the length of a load, no query gets slower towards the end, as
// with OFFSET, and a row that others insert or delete moves no other row to a
// page that was read already.
type table struct {
	db     *database
	name   string
	column string
	page   int
	rows   uint64 // as counted; 0 until then

	first, next, same, all string // the statements
}

func newTable(db *database, name, column string, page int) *table {
	t := &table{db: db, name: name, column: column, page: page}
	from, id, param := " FROM "+db.dialect.quoted(name), db.dialect.quoted(column), db.dialect.param
	t.first = fmt.Sprintf("SELECT %s%s ORDER BY %s LIMIT %d", id, from, id, page)
	t.next = fmt.Sprintf("SELECT %s%s WHERE %s > %s ORDER BY %s LIMIT %d", id, from, id, param, id, page)
	t.same = fmt.Sprintf("SELECT COUNT(*)%s WHERE %s = %s", from, id, param)
	t.all = "SELECT COUNT(*)" + from
	return t
}

// items yields every id. It opens its queries when it is ranged over, and that is
// what a rebuild relies on: an iterator over rows that were selected before would
// miss those that were committed until Settle was over. Nor are the queries one
// transaction, whose view of the table could be older still.
func (t *table) items(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var last any
		for {
			items, after, err := t.read(ctx, last)
			if err == nil && len(items) == t.page {
				err = t.checkUnique(ctx, after)
			}
			if err != nil {
				yield("", t.explain(ctx, err))
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if len(items) < t.page {
				return
			}
			last = after
		}
	}
}

// read returns the ids of the page behind last, and the last of them as the
// database gave it. A whole page is kept, so that the query has ended before the
// first id is used, however long that takes.
func (t *table) read(ctx context.Context, last any) (items []string, after any, err error) {
	query, args := t.first, []any(nil) // there is no value that is below all others, for every type
	if last != nil {
		query, args = t.next, []any{last}
	}
	rows, err := t.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, nil, err
	}
	if err := t.db.dialect.checkType(types[0].DatabaseTypeName()); err != nil {
		return nil, nil, err
	}
	items = make([]string, 0, t.page)
	for rows.Next() {
		if err := rows.Scan(&after); err != nil {
			return nil, nil, err
		}
		item, err := itemOf(after)
		if err != nil {
			return nil, nil, err
		}
		items = append(items, item)
	}
	return items, after, rows.Err()
}

// checkUnique refuses a column in which a page can end among rows that the
// database takes for equal: the next page begins behind all of them. They need
// not be the same id, with a collation that ignores case.
func (t *table) checkUnique(ctx context.Context, last any) error {
	var n int
	if err := t.db.QueryRowContext(ctx, t.same, last).Scan(&n); err != nil {
		return err
	}
	if n > 1 {
		return fmt.Errorf("%d rows have a value equal to %q: want a unique column", n, fmt.Sprint(last))
	}
	return nil
}

func (t *table) count(ctx context.Context) (uint64, error) {
	err := t.db.QueryRowContext(ctx, t.all).Scan(&t.rows)
	if err != nil {
		return 0, t.explain(ctx, err)
	}
	return t.rows, nil
}

// explain names the column. A driver whose query was interrupted has an error of
// its own for that.
func (t *table) explain(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w (%w)", ended, err)
	}
	return fmt.Errorf("read %s.%s: %w", t.name, t.column, err)
}

func (d dialect) checkType(name string) error {
	if d.keyTypes == nil || d.keyTypes[strings.TrimPrefix(name, "UNSIGNED ")] {
		return nil
	}
	return fmt.Errorf("the column is of type %s: want integers or text", name)
}

// itemOf is what a service must ask the filter for: the digits of an integer, the
// bytes of a text.
func itemOf(key any) (string, error) {
	switch k := key.(type) {
	case int64:
		return strconv.FormatInt(k, 10), nil
	case uint64:
		return strconv.FormatUint(k, 10), nil
	case string:
		return k, nil
	case []byte:
		return string(k), nil
	case nil:
		return "", errors.New("the column holds NULL: want a primary key")
	}
	return "", fmt.Errorf("the column holds a %T: want integers or text", key)
}
