package redistest

import (
	"os"
	"os/exec"
	"runtime"
)

// process is a child process that does not outlive the test binary (on Linux;
// elsewhere a test binary that is killed leaves its children behind).
type process struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended and was waited for
	err  error         // how it ended; set before gone is closed
}

// spawn starts cmd with its output appended to the file logPath.
//
// On Linux the kernel kills the child when its parent ends (Pdeathsig), but by
// "parent" it means the OS thread that forked, and Go ends threads as it sees
// fit. So the goroutine that starts the child is locked to its thread and goes
// on to wait for the child: thread and goroutine last exactly as long as the
// child does, and nothing is left over afterwards.
func spawn(cmd *exec.Cmd, logPath string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = sysProcAttr()

	p := &process{cmd: cmd, gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.gone)
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.gone
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process, even a frozen one, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only when it has ended already
	<-p.gone
}
