package vllmsim

// appendHTTP writes the families of the web framework's instrumentation, in order of first use.
func appendHTTP(b []byte, r *reading, born float64) []byte {
	k := &r.book
	head := func(name, help, kind string) {
		b = append(b, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
	}
	sample := func(name, labels string, v float64) {
		if labels != "" {
			labels = "{" + labels + "}"
		}
		b = append(appendMetric(append(b, name+labels+" "...), v), '\n')
	}
	const requestsHelp = "Total number of requests by method, status and handler."
	head("http_requests_total", requestsHelp, "counter")
	for _, q := range k.requests {
		sample("http_requests_total", q.labels(), float64(q.n))
	}
	if len(k.requests) > 0 {
		head("http_requests_created", requestsHelp, "gauge")
	}
	for _, q := range k.requests {
		sample("http_requests_created", q.labels(), q.created)
	}
	sizes := func(name, what string, get func(handlerBook) int64) {
		help := "Content length of " + what + " by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. "
		head(name, help, "summary")
		for _, h := range k.handlers {
			sample(name+"_count", `handler="`+h.handler+`"`, float64(h.n))
			sample(name+"_sum", `handler="`+h.handler+`"`, float64(get(h)))
		}
		if len(k.handlers) > 0 {
			head(name+"_created", help, "gauge")
		}
		for _, h := range k.handlers {
			sample(name+"_created", `handler="`+h.handler+`"`, h.created)
		}
	}
	sizes("http_request_size_bytes", "incoming requests", func(h handlerBook) int64 { return h.request })
	sizes("http_response_size_bytes", "outgoing responses", func(h handlerBook) int64 { return h.response })
	buckets := func(name, before, after string, h *histogram) {
		for i := range h.bounds {
			sample(name+"_bucket", before+`le="`+string(appendMetric(nil, h.bounds[i]))+`"`+after, h.below(i))
		}
		sample(name+"_bucket", before+`le="+Inf"`+after, float64(h.n))
	}
	const highRes = "http_request_duration_highr_seconds"
	const highHelp = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
	head(highRes, highHelp, "histogram")
	buckets(highRes, "", "", &k.highRes)
	sample(highRes+"_count", "", float64(k.highRes.n))
	sample(highRes+"_sum", "", k.highRes.sum)
	head(highRes+"_created", highHelp, "gauge")
	sample(highRes+"_created", "", born)
	const low = "http_request_duration_seconds"
	const lowHelp = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "
	head(low, lowHelp, "histogram")
	for i := range k.latencies {
		l := &k.latencies[i]
		buckets(low, `handler="`+l.handler+`",`, `,method="`+l.method+`"`, &l.h)
		sample(low+"_count", l.labels(), float64(l.h.n))
		sample(low+"_sum", l.labels(), l.h.sum)
	}
	if len(k.latencies) > 0 {
		head(low+"_created", lowHelp, "gauge")
	}
	for i := range k.latencies {
		sample(low+"_created", k.latencies[i].labels(), k.latencies[i].created)
	}
	return b
}

func (q requestBook) labels() string {
	return `handler="` + q.handler + `",method="` + q.method + `",status="` + q.status + `"`
}

func (l *latencyBook) labels() string {
	return `handler="` + l.handler + `",method="` + l.method + `"`
}
