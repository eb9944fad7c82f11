package main

import (
	"errors"
	"fmt"
	"math"
)

// verdict is nil where the run kept both promises: no wrong answer, and no
// more false positives than predicted.
func (r *report) verdict() error {
	var broken []error
	for i := range r.outcomes {
		if o := &r.outcomes[i]; o.wrong > 0 {
			broken = append(broken, fmt.Errorf("%s: %s wrong answers, want 0: first, %s", o.name, grouped(o.wrong), o.firstWrong))
		}
	}
	if got := r.guard().queriesAbsent; float64(got) > r.limit() {
		broken = append(broken, fmt.Errorf("the Guard let %s of %s absent ids through, want at most %.0f"+
			" (1.1 times the predicted rate and 4 standard deviations); %d of its look-ups found the filter unreadable",
			grouped(got), grouped(r.attack.absent()), r.limit(), r.guard().stats.FailOpens))
	}
	return errors.Join(broken...)
}

func (r *report) limit() float64 { return queryLimit(r.filter.predicted, r.attack.absent()) }

// queryLimit is what database queries for absent, distinct ids must not
// exceed: a tenth above the predicted number, for the prediction is a model,
// and 4 standard deviations, which chance exceeds in 1 run of 30,000. Where
// less than one is expected the deviation of one is taken, else a single
// false positive would be too many.
func queryLimit(predicted float64, absent int) float64 {
	expected := predicted * float64(absent)
	return 1.1*expected + 4*math.Sqrt(max(expected, 1))
}
