package vllmsim

import (
	"strconv"
	"strings"
)

// Ages of the vLLM pages.
const (
	age08  = 1 << iota // as 0.10.0 recorded: old and new names side by side
	age12              // 0.12: the old names are gone, the newest families are not there yet
	ageNow             // as 0.32.0 recorded
)

func newMetricsPage(s *Server) *metricsPage {
	born := float64(s.born.UnixNano()) / 1e9
	if s.cfg.MetricsStyle == "sglang" {
		return sglangPage(s, born)
	}
	age := map[string]int{"vllm-0.8": age08, "vllm-0.12": age12, "current": ageNow}[s.cfg.MetricsStyle]
	p := &builder{created: born}
	p.process(born)
	v := vllmPage{builder: p, age: age, model: `model_name="` + escapeLabel(s.cfg.Model[0]) + `"`}
	v.gauges()
	v.counters()
	v.histograms(s.cfg.MaxModelLen)
	p.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig",
		series{cacheConfigLabels(s.cfg, age), func(*reading) float64 { return 1 }})
	return &metricsPage{cells: p.cells, tail: func(b []byte, r *reading) []byte { return appendHTTP(b, r, born) }}
}

func escapeLabel(v string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(v)
}

// vllmPage lays out the vllm: families that an age has, in its order.
type vllmPage struct {
	*builder
	age   int
	model string
}

func (v vllmPage) has(ages int) bool { return v.age&ages != 0 }

// with returns a series of this engine; before and after are further labels around model_name, which sort so.
func (v vllmPage) with(before, after string, get func(*reading) float64) series {
	return series{`engine="0",` + before + v.model + after, get}
}

func (v vllmPage) one(get func(*reading) float64) series { return v.with("", "", get) }

func zero(*reading) float64 { return 0 }

func (v vllmPage) gauges() {
	if v.has(ageNow) {
		const tail = " per GPU (for Model Flops Utilization calculations)."
		v.counter("vllm:estimated_flops_per_gpu", "Estimated number of floating point operations"+tail, v.one(zero))
		v.counter("vllm:estimated_read_bytes_per_gpu", "Estimated number of bytes read from memory"+tail, v.one(zero))
		v.counter("vllm:estimated_write_bytes_per_gpu", "Estimated number of bytes written to memory"+tail, v.one(zero))
	}
	v.gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
		v.one(func(r *reading) float64 { return float64(r.engine.Running) }))
	v.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.",
		v.one(func(r *reading) float64 { return float64(r.engine.Waiting) }))
	if v.has(ageNow) {
		v.gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for "+
			"scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all "+
			"reasons equals vllm:num_requests_waiting.",
			v.with("", `,reason="capacity"`, func(r *reading) float64 { return float64(r.engine.Capacity) }),
			v.with("", `,reason="deferred"`, func(r *reading) float64 { return float64(r.engine.Deferred) }))
	}
	if v.has(age12 | ageNow) {
		v.gauge("vllm:engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "+
			"weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
			v.sleep("awake", 0), v.sleep("weights_offloaded", 1), v.sleep("discard_all", 2))
		v.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
			v.one(func(r *reading) float64 { return r.engine.KVUsage }))
		return
	}
	// The old pages count the null block as used, once a step has set the gauge.
	usage := func(r *reading) float64 {
		if r.engine.Steps == 0 {
			return 0
		}
		return 1 - float64(r.blocks-1-r.engine.UsedBlocks)/float64(r.blocks)
	}
	v.gauge("vllm:gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.DEPRECATED: Use vllm:kv_cache_usage_perc instead.",
		v.one(usage))
	v.counter("vllm:gpu_prefix_cache_queries", "GPU prefix cache queries, in terms of number of queriedtokens. DEPRECATED: Use "+
		"vllm:prefix_cache_queries instead.", v.one(queries))
	v.counter("vllm:gpu_prefix_cache_hits", "GPU prefix cache hits, in terms of number of cached tokens. DEPRECATED: Use "+
		"vllm:prefix_cache_hits instead.", v.one(hits))
	v.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", v.one(usage))
}

func (v vllmPage) sleep(state string, level int) series {
	return v.with("", `,sleep_state="`+state+`"`, func(r *reading) float64 {
		if r.asleep == level {
			return 1
		}
		return 0
	})
}

func queries(r *reading) float64 { return float64(r.engine.Queries) }
func hits(r *reading) float64    { return float64(r.engine.Hits) }

func (v vllmPage) counters() {
	v.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", v.one(queries))
	v.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", v.one(hits))
	if v.has(age12 | ageNow) {
		const external = " from KV connector cross-instance cache sharing, in terms of number of "
		v.counter("vllm:external_prefix_cache_queries", "External prefix cache queries"+external+"queried tokens.", v.one(zero))
		v.counter("vllm:external_prefix_cache_hits", "External prefix cache hits"+external+"cached tokens.", v.one(zero))
		v.counter("vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", v.one(zero))
		v.counter("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", v.one(zero))
	}
	v.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.",
		v.one(func(r *reading) float64 { return float64(r.engine.Preemptions) }))
	v.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", v.one(func(r *reading) float64 { return float64(r.engine.Prompt) }))
	if v.has(ageNow) {
		v.sources()
	}
	v.counter("vllm:generation_tokens", "Number of generation tokens processed.",
		v.one(func(r *reading) float64 { return float64(r.engine.Generated) }))
	finished := func(reason string, get func(*reading) float64) series {
		return v.with(`finished_reason="`+reason+`",`, "", get)
	}
	success := []series{
		finished("stop", func(r *reading) float64 { return float64(r.engine.DoneStop) }),
		finished("length", func(r *reading) float64 { return float64(r.engine.DoneLength) }),
		finished("abort", func(r *reading) float64 { return float64(r.engine.DoneAbort) }),
	}
	if v.has(ageNow) {
		success = append(success, finished("error", zero), finished("repetition", zero))
	}
	v.counter("vllm:request_success", "Count of successfully processed requests.", success...)
	if v.has(ageNow) {
		v.counter("vllm:admission_rejections", "Number of admission attempts rejected by a queue limit, by reason.",
			series{v.model + `,reason="max_num_queued_reqs"`, func(r *reading) float64 { return float64(r.engine.RefusedQueue) }},
			series{v.model + `,reason="max_num_queued_tokens"`, func(r *reading) float64 { return float64(r.engine.RefusedBacklog) }})
	}
}

func (v vllmPage) sources() {
	source := func(name string, get func(*reading) float64) series { return v.with("", `,source="`+name+`"`, get) }
	cached := func(r *reading) float64 { return float64(r.engine.PromptHit) }
	v.counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.",
		source("local_compute", func(r *reading) float64 { return float64(r.engine.PromptLocal) }),
		source("local_cache_hit", cached), source("external_kv_transfer", zero))
	v.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", v.one(cached))
	v.counter("vllm:prompt_tokens_cached_by_source", "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), "+
		"host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; "+
		"sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
		source("device", hits), source("host", zero), source("p2p", zero), source("disk", zero), source("external_unspecified", zero))
}

func (v vllmPage) histograms(window int) {
	shape := newBook(Config{MaxModelLen: window})
	add := func(ages int, name, help string, of func(*book) *histogram) {
		if v.has(ages) {
			v.histogram("vllm:"+name, help, v.model, of(&shape).bounds, func(r *reading) *histogram { return of(&r.book) })
		}
	}
	const all = age08 | age12 | ageNow
	add(all, "request_prompt_tokens", "Number of prefill tokens processed.", func(b *book) *histogram { return &b.promptTokens })
	add(all, "request_generation_tokens", "Number of generation tokens processed.", func(b *book) *histogram { return &b.generated })
	add(all, "iteration_tokens_total", "Histogram of number of tokens per engine_step.", func(b *book) *histogram { return &b.iteration })
	add(all, "request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.",
		func(b *book) *histogram { return &b.maxGenerated })
	add(all, "request_params_n", "Histogram of the n request parameter.", func(b *book) *histogram { return &b.paramsN })
	add(all, "request_params_max_tokens", "Histogram of the max_tokens request parameter.", func(b *book) *histogram { return &b.paramsMax })
	add(all, "time_to_first_token_seconds", "Histogram of time to first token in seconds.", func(b *book) *histogram { return &b.ttft })
	itl := func(b *book) *histogram { return &b.itl }
	add(age08|age12, "time_per_output_token_seconds", "Histogram of time per output token in seconds.", itl)
	add(age12|ageNow, "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", itl)
	add(age12|ageNow, "request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.",
		func(b *book) *histogram { return &b.perToken })
	add(all, "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", func(b *book) *histogram { return &b.e2e })
	phase := func(name, phase string, of func(*book) *histogram) {
		add(all, "request_"+name+"_time_seconds", "Histogram of time spent in "+phase+" phase for request.", of)
	}
	phase("queue", "WAITING", func(b *book) *histogram { return &b.queue })
	phase("inference", "RUNNING", func(b *book) *histogram { return &b.inference })
	phase("prefill", "PREFILL", func(b *book) *histogram { return &b.prefill })
	phase("decode", "DECODE", func(b *book) *histogram { return &b.decode })
	add(ageNow, "request_num_preemptions", "Histogram of the number of times a request was preempted.",
		func(b *book) *histogram { return &b.preemptions })
	add(ageNow, "request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
		func(b *book) *histogram { return &b.computed })
}

func pyBool(v bool) string {
	if v {
		return "True"
	}
	return "False"
}

// cacheConfigLabels are the settings of the cache as labels; the set differs in every release. $b, $n, $p, $t, $c are block
// size, blocks, prefix caching, tokens and full-length requests that fit.
func cacheConfigLabels(cfg Config, age int) string {
	const old = `block_size="$b",cache_dtype="auto",calculate_kv_scales="False",cpu_kvcache_space_bytes="1073741824",cpu_offload_gb="0.0",` +
		`enable_prefix_caching="$p",engine="0",gpu_memory_utilization="0.9",is_attention_free="False",mamba_page_size_padded="None",` +
		`num_cpu_blocks="None",num_gpu_blocks="$n",num_gpu_blocks_override="$n",prefix_caching_hash_algo="builtin",sliding_window="None",` +
		`swap_space="4.0",swap_space_bytes="4294967296.0"`
	const middle = `block_size="$b",cache_dtype="auto",calculate_kv_scales="False",cpu_kvcache_space_bytes="None",cpu_offload_gb="0.0",` +
		`enable_prefix_caching="$p",engine="0",gpu_memory_utilization="0.9",is_attention_free="False",kv_cache_memory_bytes="None",` +
		`kv_offloading_backend="None",kv_offloading_size="None",kv_sharing_fast_prefill="False",mamba_block_size="None",` +
		`mamba_cache_dtype="auto",mamba_page_size_padded="None",mamba_ssm_cache_dtype="auto",num_cpu_blocks="None",num_gpu_blocks="$n",` +
		`num_gpu_blocks_override="$n",prefix_caching_hash_algo="sha256",sliding_window="None",swap_space="4.0",swap_space_bytes="4294967296.0"`
	const current = `_block_size_resolved="True",block_size="$b",cache_dtype="auto",cache_hit_alignment_tokens="None",` +
		`effective_attention_block_size="$b",enable_mamba_shared_prefix_checkpoint="False",enable_prefix_caching="$p",engine="0",` +
		`gpu_memory_utilization="0.92",hash_block_size="None",is_attention_free="False",kv_cache_dtype_skip_layers="[]",` +
		`kv_cache_layout="None",kv_cache_max_concurrency="$c",kv_cache_memory_bytes="67108864",kv_cache_size_tokens="$t",` +
		`kv_offloading_backend="native",kv_offloading_size="None",kv_sharing_fast_prefill="False",mamba_block_size="None",` +
		`mamba_cache_dtype="auto",mamba_cache_mode="none",mamba_page_size_padded="None",mamba_ssm_cache_dtype="float32",` +
		`num_cpu_blocks="None",num_gpu_blocks="$n",num_gpu_blocks_override="$n",prefix_cache_retention_interval="0",` +
		`prefix_caching_hash_algo="sha256_cbor",prefix_match_unit="None",replayssm_buffer_len="16",skip_page_size_padded="None",` +
		`sliding_window="None",swa_bounded_replay="True",use_kda_recoverssm="False",use_replayssm="False",user_specified_block_size="True"`
	tokens := cfg.NumBlocks * cfg.BlockSize
	return strings.NewReplacer("$b", strconv.Itoa(cfg.BlockSize), "$n", strconv.Itoa(cfg.NumBlocks), "$p", pyBool(cfg.PrefixCaching),
		"$t", strconv.Itoa(tokens), "$c", string(appendFloat(nil, float64(tokens)/float64(cfg.MaxModelLen))),
	).Replace(map[int]string{age08: old, age12: middle, ageNow: current}[age])
}

// sglangPage is SGLang's page by the names of its source; there is no recording of it.
func sglangPage(s *Server, born float64) *metricsPage {
	p := &builder{created: born}
	p.process(born)
	labels := `engine_type="unified",model_name="` + escapeLabel(s.cfg.Model[0]) + `",pp_rank="0",tp_rank="0"`
	one := func(get func(*reading) float64) series { return series{labels, get} }
	usable := float64(s.cfg.NumBlocks - 1)
	p.gauge("sglang:num_running_reqs", "The number of running requests.", one(func(r *reading) float64 { return float64(r.engine.Running) }))
	p.gauge("sglang:num_used_tokens", "The number of used tokens.",
		one(func(r *reading) float64 { return float64(r.engine.UsedBlocks * s.cfg.BlockSize) }))
	p.gauge("sglang:token_usage", "The token usage.", one(func(r *reading) float64 { return float64(r.engine.UsedBlocks) / usable }))
	p.gauge("sglang:gen_throughput", "The generation throughput (token/s).", one(zero))
	p.gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue.",
		one(func(r *reading) float64 { return float64(r.engine.Waiting) }))
	p.gauge("sglang:num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", one(zero))
	p.gauge("sglang:cache_hit_rate", "The prefix cache hit rate.", one(func(r *reading) float64 {
		if r.engine.Queries == 0 {
			return 0
		}
		return float64(r.engine.Hits) / float64(r.engine.Queries)
	}))
	p.gauge("sglang:max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.",
		one(func(*reading) float64 { return usable * float64(s.cfg.BlockSize) }))
	p.gauge("sglang:num_retracted_reqs", "The number of retracted requests.",
		one(func(r *reading) float64 { return float64(r.engine.Preemptions) }))
	p.counter("sglang:prompt_tokens", "Number of prefill tokens processed.", one(func(r *reading) float64 { return float64(r.engine.Prompt) }))
	p.counter("sglang:generation_tokens", "Number of generation tokens processed.",
		one(func(r *reading) float64 { return float64(r.engine.Generated) }))
	p.counter("sglang:cached_tokens", "Number of cached prompt tokens.", one(func(r *reading) float64 { return float64(r.engine.PromptHit) }))
	mode := func(name string, get func(*reading) float64) series {
		return series{strings.Replace(labels, `model_name`, `mode="`+name+`",model_name`, 1), get}
	}
	p.counter("sglang:realtime_tokens", "Number of tokens processed, by mode.",
		mode("prefill_compute", func(r *reading) float64 { return float64(r.engine.PromptLocal) }),
		mode("prefill_cache", func(r *reading) float64 { return float64(r.engine.PromptHit) }),
		mode("decode", func(r *reading) float64 { return float64(r.engine.Generated) }))
	p.counter("sglang:num_requests", "Number of requests processed.",
		one(func(r *reading) float64 { return float64(r.engine.DoneStop + r.engine.DoneLength) }))
	p.gauge("sglang:cache_config_info", "Information of the cache.", series{
		`engine_type="unified",model_name="` + escapeLabel(s.cfg.Model[0]) + `",num_pages="` + strconv.Itoa(s.cfg.NumBlocks-1) + `",page_size="` +
			strconv.Itoa(s.cfg.BlockSize) + `",pp_rank="0",tp_rank="0"`, func(*reading) float64 { return 1 }})
	return &metricsPage{cells: p.cells}
}
