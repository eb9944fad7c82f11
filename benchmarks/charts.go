package main

func latencyCharts(*section) []chart    { return nil }
func throughputCharts(*section) []chart { return nil }
func batchCharts(*section) []chart      { return nil }
func growthCharts(*section) []chart     { return nil }
func loadCharts(*section) []chart       { return nil }
func guardCharts(*section) []chart      { return nil }
func accuracyCharts(*section) []chart   { return nil }

type chart struct{}
