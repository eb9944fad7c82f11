package bloomtest

// BF.ADD key item
func (c *call) add(args []string) {
	c.addAll(args[0], args[1:], c.defaults, true, false)
}

// BF.MADD key item …
func (c *call) madd(args []string) {
	c.addAll(args[0], args[1:], c.defaults, true, true)
}

// addAll adds items to the filter at key, which it makes where there is none.
func (c *call) addAll(key string, items []string, like defaults, create, array bool) {
	f, kind := c.load(key)
	switch {
	case kind == other:
		c.err(errWrongType)
		return
	case kind == missing && !create:
		c.err(errNotFound)
		return
	case kind == missing:
		var ok bool
		if f, ok = newFilter(like); !ok {
			c.err(errMemory)
			return
		}
	}
	var elements reply
	elements.resp3 = c.resp3
	n := 0
	for _, item := range items {
		added, problem := f.add(hashItem(item))
		n++
		if problem == "" {
			elements.boolean(added)
			continue
		}
		elements.err(problem)
		if problem == errFull {
			break // the array ends here, shorter than the items
		}
	}
	c.store(key, f)
	if array {
		c.array(n)
	}
	c.raw(elements.buf)
}
