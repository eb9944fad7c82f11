//go:build !unix

package redistest

func (p *process) freeze() { panic("redistest: this system cannot suspend a process") }

func (p *process) thaw() {}
